"""The baseline: how a typical first notebook plays and learns, rewritten plainly and without its mistakes.

One prompt per step holds everything the model is told: the task, the last steps, and the valid actions. It is rendered
and tokenised anew at every step, and encoded again in full for every token of the answer. For training, every turn is
such a prompt with its answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from grue.errors import GameError
from grue.games import Game
from grue.models.policy_model import PolicyModel
from grue.policy.trie import Node, TrieCache
from grue.prompts.tokens import Encoder
from grue.types import Episode, Outcome, Task, Turn

WINDOW = 15  # steps of history in a prompt


def render_prompt(
    goal: str, past: Sequence[tuple[str, str]], seen: str, actions: Sequence[str], window: int = WINDOW
) -> str:
    """The prompt before step len(past). `past` holds (observation, action) of all steps so far."""
    first = max(0, len(past) - window)
    steps = [f"# STEP {first + n}\nObs: {text}\nAction: {done}" for n, (text, done) in enumerate(past[first:])]
    now = f"# STEP {len(past)}\nObs: {seen}\nValid actions: {', '.join(actions)}\nAction:"
    return "\n".join([f"# TASK: {goal}", "Choose exactly one valid action.", *steps, now])


def prompts_of(turns: Sequence[Turn], window: int = WINDOW) -> list[str]:
    """The prompt before each turn of an episode."""
    past = [(turn.observation.text, turn.action) for turn in turns]
    return [
        render_prompt(t.observation.goal, past[:n], t.observation.text, t.observation.actions or (), window)
        for n, t in enumerate(turns)
    ]


@dataclass(slots=True)
class PromptPlayer:
    """Plays one game at a time. `passes` and `tokens` count what the model has read in total."""

    model: PolicyModel
    encoder: Encoder
    window: int = WINDOW
    tries: TrieCache = field(init=False)
    passes: int = 0
    tokens: int = 0

    def __post_init__(self) -> None:
        self.tries = TrieCache(self.encoder.action)

    def play(self, game: Game, task: Task, rng: random.Random) -> Episode:
        """One episode, actions sampled."""
        observation = game.reset(task)
        past: list[tuple[str, str]] = []
        turns: list[Turn] = []
        while True:
            actions = observation.actions or ()
            prompt = render_prompt(observation.goal, past, observation.text, actions, self.window)
            ids = self.encoder.tokenizer(prompt).input_ids
            action = self.choose(ids, self.tries(actions), rng)
            before = observation
            try:
                observation, reward, outcome = game.step(action)
            except GameError as error:
                return Episode(task, "notebook", tuple(turns), Outcome.FAILED, before, error=error.message)
            turns.append(Turn(before, action, reward))
            past.append((before.text, action))
            if outcome is not None:
                return Episode(task, "notebook", tuple(turns), outcome, observation)

    @torch.inference_mode()
    def choose(self, ids: Sequence[int], root: Node, rng: random.Random | None = None) -> str:
        """The action after the prompt `ids`, a token at a time; greedy without `rng`.

        Every token takes a pass over the prompt and the answer so far, even where only one token is valid: free
        generation, for which this stands in, would not know that either.
        """
        decoder = self.model.base_lm().get_decoder()
        device = next(self.model.parameters()).device
        ids, node = list(ids), root
        while node.action is None:
            hidden_1LH = decoder(input_ids=torch.tensor([ids], device=device), use_cache=False).last_hidden_state
            self.passes, self.tokens = self.passes + 1, self.tokens + len(ids)
            logits_1C = self.model.logits(hidden_1LH[:, -1], torch.tensor([node.tokens], device=device))
            if rng is None:
                pick = int(logits_1C.argmax())
            else:
                pick = rng.choices(range(len(node.tokens)), torch.softmax(logits_1C[0], -1).tolist())[0]
            ids.append(node.tokens[pick])
            node = node.child(pick)
        return node.action

    @torch.inference_mode()
    def weigh(self, turns: Sequence[Turn]) -> list[tuple[float, float]]:
        """(log-probability of the action, value of its prompt) for each turn: what PPO learns from.

        As in the notebook, this is a separate pass over prompt and answer, after the game.
        """
        agent, device = PromptActorCritic(self.model), next(self.model.parameters()).device
        found = []
        for prompt, turn in zip(prompts_of(turns, self.window), turns, strict=True):
            answer = self.encoder.action(turn.action)
            ids_L = torch.tensor([*self.encoder.tokenizer(prompt).input_ids, *answer], device=device)
            log_prob, value, _ = agent(ids_L, len(answer))
            self.passes, self.tokens = self.passes + 1, self.tokens + len(ids_L)
            found.append((float(log_prob), float(value)))
        return found


@dataclass(frozen=True, slots=True)
class PromptSample:
    """One turn to learn from: a prompt and its answer."""

    ids_L: torch.Tensor
    answer: int  # tokens at the end of ids_L that are the answer
    advantage: float
    target: float  # what the critic should have predicted
    old_value: float


class PromptActorCritic(torch.nn.Module):
    """Log-probability of an answer, over the whole vocabulary, and the value of its prompt."""

    def __init__(self, model: PolicyModel) -> None:
        super().__init__()
        self.policy = model

    def forward(self, ids_L: torch.Tensor, answer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(log-probability, value, mean entropy of the answer's tokens), all 0-D."""
        lm = self.policy.base_lm()
        hidden_LH = lm.get_decoder()(input_ids=ids_L[None], use_cache=False).last_hidden_state[0]
        before_AH = hidden_LH[-answer - 1 : -1]
        log_probs_AV = torch.log_softmax(lm.get_output_embeddings()(before_AH).float(), -1)
        log_prob = log_probs_AV.gather(1, ids_L[-answer:, None]).sum()
        entropy = -(log_probs_AV.exp() * log_probs_AV).sum(-1).mean()
        return log_prob, self.policy.value_head(before_AH[0]), entropy
