"""Scoring all valid actions of a state: one tree after a shared cached prefix, against one forward pass per action."""

from __future__ import annotations

import random
from typing import Any

import torch

from grue.bench import Say
from grue.bench.common import alternate, facts, load, result, threads
from grue.config import Config
from grue.engine.engine import Engine
from grue.errors import ConfigError
from grue.models.policy_model import PolicyModel
from grue.policy.actor import Actor
from grue.policy.decision import Decision, Query
from grue.policy.score import ScorePolicy
from grue.prompts.tokens import Encoder
from grue.types import Candidate

ACTIONS = 42  # valid actions of the state
HISTORY = (
    "You are in the kitchen. In one part of the room you see a stove. There is also an oven. You also see a fridge.",
    "You are in the pantry. You see a shelf with a red apple, a yellow bell pepper and a block of cheese on it.",
)
SAME = (
    "the same model, number format, threads, prompts and actions; both score every action by the log-probability of "
    "its text over the whole vocabulary, and their softmax agrees. Both clocks start when a new observation has been "
    "shown: ours reads it after the cached game and then all actions as one tree, the baseline reads the whole "
    "prompt with each action, as a forward pass of the Hugging Face model without a cache does"
)


def state_actions(count: int = ACTIONS) -> tuple[str, ...]:
    """`count` different actions like those of a kitchen, of which there are 49."""
    verbs = ("take", "cook", "slice", "chop", "dice", "eat", "put")
    things = ("red apple", "yellow bell pepper", "cheese", "knife", "cookbook", "water", "black pepper")
    every = [f"{verb} {thing}" for thing in things for verb in verbs]
    if not 1 <= count <= len(every):
        raise ConfigError(f"actions={count} is not a number from 1 to {len(every)}", hint=f"such as actions={ACTIONS}")
    return tuple(sorted(every[:count]))


def run(
    config: Config, say: Say, *, actions: int = ACTIONS, turns: int = 8, states: int = 8, repetitions: int = 3
) -> dict[str, Any]:
    """`states` states with `actions` actions each, after about `turns` turns of a game, `repetitions` times."""
    trained, encoder = load(config)
    model, plain = (Actor(trained, config.model.dtype, reordered=reordered).model for reordered in (True, False))
    policy = ScorePolicy(model, encoder)
    candidates = policy.candidates(state_actions(actions))
    prompts = [_prompt(encoder, turns, number) for number in range(states)]
    with threads(config) as thread_count:
        longest = max(len(before) + len(now) for before, now in prompts)
        engine = Engine(model.base_lm(), states, longest + policy.room(state_actions(actions)))
        engine.feed(range(states), [before for before, _ in prompts])

        def ours(row: int) -> torch.Tensor:
            before, now = prompts[row]
            engine.reset(row, len(before))
            query = Query(row, state_actions(actions), len(before) + len(now), random.Random(0), now)
            scores_BC: torch.Tensor = policy.scores(engine, [Decision(query, candidates=candidates)])[1]
            return scores_BC[0]

        def baseline(row: int) -> torch.Tensor:
            before, now = prompts[row]
            return _baseline(plain, candidates, [*before, *now])

        gap = max(
            float((ours(row).softmax(-1) - baseline(row).softmax(-1)).abs().max()) for row in range(min(2, states))
        )
        say(f"largest difference of a probability: {gap:.1e}")

        def look(_: int) -> int:
            return len([ours(row) for row in range(states)])

        def read(_: int) -> int:
            return len([baseline(row) for row in range(states)])

        measured = alternate(look, read, repetitions, "states", say)
    common = {**facts(config, model, thread_count), "actions": actions, "prompt_tokens": sum(map(len, prompts[0]))}
    extra = {"largest_difference": gap}
    return result("score", "states", measured, {**common, **extra}, {**common, "passes_per_state": actions}, SAME)


def _prompt(encoder: Encoder, turns: int, number: int) -> tuple[list[int], list[int]]:
    """(ids of a game so far, ids of what is shown now)."""
    rng, ids = random.Random(number), list(encoder.task("Cook a meal and eat it.", 16))
    for _ in range(turns):
        ids += [*encoder.observation(rng.choice(HISTORY)), *encoder.action(rng.choice(state_actions()))]
    return ids, list(encoder.observation(rng.choice(HISTORY)))


@torch.inference_mode()
def _baseline(model: PolicyModel, candidates: tuple[Candidate, ...], prompt: list[int]) -> torch.Tensor:
    """Scores (K,), one forward pass of the Hugging Face model for each action."""
    device, found = next(model.parameters()).device, []
    for candidate in candidates:
        ids = torch.tensor([[*prompt, *candidate.ids]], device=device)
        logits_AV = model.base_lm()(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        chosen = torch.tensor(candidate.ids, device=device)
        log_probs = torch.log_softmax(logits_AV, -1).gather(1, chosen[:, None])
        found.append(log_probs.sum() / candidate.divisor)
    return torch.stack(found)
