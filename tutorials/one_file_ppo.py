"""grue in one file, with its plainest policy: play, imitate, improve, measure. Needs torch and transformers, not grue.

    python tutorials/one_file_ppo.py                    # the base that ships with grue; some minutes on two cores
    python tutorials/one_file_ppo.py --model FOLDER     # a causal model with a plain head, or its hub name

Read it from top to bottom. tests/tutorials/test_one_file.py checks that, on the same batch, its advantages, losses and
gradients equal the library's. Names end in axes: B rows, L ids, N branching nodes, C children, T turns, H hidden.
"""

from __future__ import annotations

import argparse
import copy
import functools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

# ---- 1. A game: partially observed, in text, with a step limit that its own teacher often exceeds --------------------
LIMIT = 12
FOODS = ("red apple", "banana", "carrot", "yellow potato", "red onion", "green hot pepper")
CUTS, COOKS = ("chop", "slice", "dice"), ("fry", "roast")


class Kitchen:
    """One room, one recipe. Seeds from 10,000 on are for testing: they share no (food, cut, cooking) with the rest."""

    def __init__(self, seed: int, limit: int = LIMIT) -> None:
        draw, test = random.Random(f"kitchen/{seed}"), int(seed >= 10_000)
        first, second, spare = draw.sample(FOODS, 3)
        ways = [(i + j, (cut, cook)) for i, cut in enumerate(CUTS) for j, cook in enumerate(COOKS)]
        allowed = {food: [way for n, way in ways if (n + FOODS.index(food)) % 2 == test] for food in (first, second)}
        self.recipe = {food: draw.choice(found) for food, found in allowed.items()}
        self.fridge = [second] if draw.random() < 0.67 else []
        self.counter = [*sorted({first, second, spare} - set(self.fridge)), "knife", "cookbook"]
        self.held: list[str] = []
        self.points: set[str] = set()
        self.open, self.steps, self.limit, self.outcome = False, 0, limit, ""  # in the end "won", "lost" or "limit"

    def actions(self) -> list[str]:
        """The valid actions, sorted."""
        listed = ["look around", "read cookbook", "prepare meal", "close fridge" if self.open else "open fridge"]
        listed += [f"take {thing}" for thing in self.counter + (self.fridge if self.open else [])]
        verbs = (*COOKS, *(CUTS if "knife" in self.held else ()))
        return sorted(listed + [f"{verb} {food}" for food in self.held if food in FOODS for verb in verbs])

    def look(self) -> str:
        fridge = f"open and holds {', '.join(self.fridge) or 'nothing'}" if self.open else "closed"
        return f"You are in the kitchen. There is a fridge that is {fridge}. You see: {', '.join(self.counter)}."

    def step(self, action: str) -> tuple[str, float]:
        """(what is seen next, the change of the score). Every action costs a step; a won game has score 1."""
        before = len(self.points)
        text = self._do(*action.split(" ", 1)) if action in self.actions() else "Nothing happens."
        self.steps += 1
        self.outcome = self.outcome or ("limit" if self.steps >= self.limit else "")
        return text, (len(self.points) - before) / 7

    def _do(self, verb: str, thing: str) -> str:
        if verb == "look":
            return self.look()
        if verb == "read":
            directions = [f"  {how} the {food}" for food, ways in self.recipe.items() for how in ways]
            return "\n".join(["Ingredients:", *(f"  {food}" for food in self.recipe), "Directions:", *directions])
        if thing == "fridge":
            self.open = verb == "open"
            return f"You {verb} the fridge. It holds {', '.join(self.fridge) or 'nothing'}."
        if verb == "take":
            (self.counter if thing in self.counter else self.fridge).remove(thing)
            self.held.append(thing)
        if verb == "prepare":
            if len(self.points) < 6:
                return "Something is still missing."
            self.outcome = "won"
        if verb in CUTS + COOKS and thing in self.recipe and verb not in self.recipe[thing]:
            self.outcome = "lost"
        elif verb == "prepare" or thing in self.recipe:
            self.points.add(f"{verb} {thing}")
        return f"You {verb} the {thing}."

    def teacher(self) -> list[str]:
        """A solution that always works and wastes steps, as the gold paths of TextWorldExpress do."""
        first, second = self.recipe
        fetch = ["open fridge", f"take {second}", "close fridge"] if self.fridge else [f"take {second}"]
        work = [f"{how} {food}" for food, ways in self.recipe.items() for how in ways]
        begin = ["look around", "take cookbook", "read cookbook", "take knife", f"take {first}"]
        return [*begin, *fetch, *work, "prepare meal"]


# ---- 2. The transcript: ids are only ever appended ------------------------------------------------------------------
Encode = Callable[[str], list[int]]  # pieces are encoded separately, so training reads the ids that were played
HEADER = f"You are hungry! Check the cookbook in the kitchen and cook a delicious meal. You have {LIMIT} steps.\n"


@dataclass
class Turn:
    """One decision. `branches`: (position of the token whose logits decide, the children, index of the chosen one)."""

    position: int  # of the last token before the action: where the critic reads
    branches: list[tuple[int, tuple[int, ...], int]]
    log_prob: float = 0.0
    value: float = 0.0
    reward: float = 0.0
    advantage: float = 0.0
    target: float = 0.0  # of the critic


@dataclass
class Episode:
    ids: list[int]
    turns: list[Turn] = field(default_factory=list)
    outcome: str = ""


# ---- 3. The policy: valid actions form a trie of tokens, and the model chooses at each branch ------------------------
Trie = dict  # token id -> Trie, or the action where it ends


def build_trie(actions: Sequence[str], encode: Encode) -> Trie:
    root: Trie = {}
    for action in actions:
        *inner, last = encode(f" {action}\n")
        node = root
        for token in inner:
            node = node.setdefault(token, {})
        node[last] = action
    return root


class ActorCritic(nn.Module):  # a causal language model, and a small head that reads the state before an action
    def __init__(self, lm: nn.Module) -> None:
        super().__init__()
        self.lm, hidden = lm, lm.config.hidden_size
        self.critic = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, 256), nn.GELU(), nn.Linear(256, 1))
        nn.init.zeros_(self.critic[-1].weight)
        nn.init.zeros_(self.critic[-1].bias)

    def read(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Hidden states (B, L, H). Rows are padded on the right: attention is causal, so no mask is needed."""
        ids_BL = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        return self.lm.get_decoder()(input_ids=ids_BL, use_cache=False).last_hidden_state

    def child_log_probs(self, hidden_NH: torch.Tensor, children: Sequence[Sequence[int]]) -> torch.Tensor:
        """(N, C) log-probabilities over the children of each node, -inf pads: pi(a|s) is a product over nodes."""
        children_NC = pad_sequence([torch.tensor(c) for c in children], batch_first=True, padding_value=-1)
        weight_NCH = self.lm.get_output_embeddings().weight[children_NC.clamp(min=0)]
        logits_NC = torch.einsum("nh,nch->nc", hidden_NH, weight_NCH).masked_fill(children_NC < 0, -math.inf)
        return torch.log_softmax(logits_NC, -1)

    def values(self, hidden_TH: torch.Tensor) -> torch.Tensor:
        """(T,). Detached: the critic's gradient does not reach the language model."""
        return self.critic(hidden_TH.detach()).squeeze(-1)


# ---- 4. Playing: all games take a step together ---------------------------------------------------------------------
class Play:
    """A game for each seed, all in one batch. Every token is read once: keys and values of earlier ones are cached."""

    def __init__(self, model: ActorCritic, encode: Encode, seeds: Sequence[int], rng: random.Random, greedy: bool):
        self.model, self.encode, self.rng, self.greedy = model, encode, rng, greedy
        self.games = [Kitchen(seed) for seed in seeds]
        self.episodes = [Episode(encode(HEADER) + encode(f"{game.look()}\n>")) for game in self.games]
        self.cache, self.mask = DynamicCache(), torch.zeros(len(self.games), 0, dtype=torch.long)

    @torch.no_grad()
    def run(self) -> list[Episode]:
        while walks := [(i, build_trie(g.actions(), self.encode)) for i, g in enumerate(self.games) if not g.outcome]:
            for row, _ in walks:
                self.episodes[row].turns.append(Turn(len(self.episodes[row].ids) - 1, []))
            while ends := [(row, forced(self.episodes[row].ids, node)) for row, node in walks]:
                for row, action in (end for end in ends if isinstance(end[1], str)):
                    game, episode = self.games[row], self.episodes[row]
                    text, episode.turns[-1].reward = game.step(action)
                    episode.outcome = game.outcome
                    episode.ids += [] if game.outcome else self.encode(f"{text}\n>")
                left = [end for end in ends if isinstance(end[1], dict)]
                walks = self.decide(left) if left else []
        return self.episodes

    def decide(self, walks: list[tuple[int, Trie]]) -> list[tuple[int, Trie | str]]:
        """One branching node for each (row, node): choose a child, record the branch, step down."""
        fed, rows, below = self.mask.sum(1).tolist(), [row for row, _ in walks], []
        news = [episode.ids[fed[row] :] if row in rows else [] for row, episode in enumerate(self.episodes)]
        hidden_BLH = self.feed(news)
        last_BH = hidden_BLH[rows, [len(news[row]) - 1 for row in rows]]
        log_probs_BC = self.model.child_log_probs(last_BH, [tuple(node) for _, node in walks])
        for (row, node), log_probs_C in zip(walks, log_probs_BC, strict=True):
            ids, turn, children = self.episodes[row].ids, self.episodes[row].turns[-1], tuple(node)
            if not turn.branches:  # the first read of a turn: its state is among the new tokens
                turn.value = self.model.values(hidden_BLH[row, turn.position - fed[row]]).item()
            chances = log_probs_C[: len(children)].exp().tolist()
            drawn = self.rng.choices(range(len(children)), chances)[0]
            pick = chances.index(max(chances)) if self.greedy else drawn
            turn.branches.append((len(ids) - 1, children, pick))
            turn.log_prob += log_probs_C[pick].item()
            ids.append(children[pick])
            below.append((row, node[children[pick]]))
        return below

    def feed(self, news: list[list[int]]) -> torch.Tensor:
        """Hidden states (rows, longest, H) of new tokens; rows with fewer are padded, and the padding is masked."""
        ids = pad_sequence([torch.tensor(new, dtype=torch.long) for new in news], batch_first=True)
        columns, counts = torch.arange(ids.shape[1]), torch.tensor([len(new) for new in news])
        places = self.mask.sum(1, keepdim=True) + columns
        self.mask = torch.cat([self.mask, (columns < counts[:, None]).long()], 1)
        known = {"attention_mask": self.mask, "position_ids": places, "past_key_values": self.cache, "use_cache": True}
        return self.model.lm.get_decoder()(input_ids=ids, **known).last_hidden_state


def forced(ids: list[int], node: Trie | str) -> Trie | str:
    """Append tokens while there is no choice; return the next node with a choice, or the action reached."""
    while isinstance(node, dict) and len(node) == 1:
        ((token, node),) = node.items()
        ids.append(token)
    return node


def demonstration(seed: int, encode: Encode, omit: float = 0.0) -> Episode:
    """The teacher's game, played to its end. Random omissions teach the clone to go on from where it is."""
    game, rng = Kitchen(seed, limit=50), random.Random(f"omit/{seed}/{omit}")
    episode = Episode(encode(HEADER) + encode(f"{game.look()}\n>"))
    for action in game.teacher():
        if game.outcome or rng.random() < omit or action not in game.actions():
            continue
        turn, node = Turn(len(episode.ids) - 1, []), build_trie(game.actions(), encode)
        for token in encode(f" {action}\n"):
            if len(node) > 1:
                turn.branches.append((len(episode.ids) - 1, tuple(node), tuple(node).index(token)))
            node = node[token]
            episode.ids.append(token)
        text, turn.reward = game.step(action)
        episode.turns.append(turn)
        episode.ids += encode(f"{text}\n>")
    episode.outcome = "limit" if len(episode.turns) > LIMIT else game.outcome
    return episode


# ---- 5. One forward pass reads all turns of all episodes ------------------------------------------------------------
class Read(NamedTuple):  # how the current model reads a batch of episodes
    log_probs_NC: torch.Tensor
    chosen_N: torch.Tensor  # log-probabilities of the children that were chosen
    turn_N: torch.Tensor  # which turn a node belongs to
    values_T: torch.Tensor

    def per_turn(self, values_N: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(self.values_T).index_add(0, self.turn_N, values_N)


def read(model: ActorCritic, episodes: Sequence[Episode]) -> Read:
    hidden_BLH = model.read([episode.ids for episode in episodes])
    turns = [(row, turn) for row, episode in enumerate(episodes) for turn in episode.turns]
    nodes = [(row, t, *branch) for t, (row, turn) in enumerate(turns) for branch in turn.branches]
    rows, numbers, positions, children, chosen = zip(*nodes, strict=True)
    before_TH = hidden_BLH[[row for row, _ in turns], [turn.position for _, turn in turns]]
    log_probs_NC = model.child_log_probs(hidden_BLH[list(rows), list(positions)], children)
    chosen_N = log_probs_NC.gather(1, torch.tensor(chosen)[:, None]).squeeze(1)
    return Read(log_probs_NC, chosen_N, torch.tensor(numbers), model.values(before_TH))


# ---- 6. SFT: cross-entropy at the branching nodes, slightly smoothed to leave room for exploration -------------------
def sft_loss(model: ActorCritic, episodes: Sequence[Episode], smoothing: float) -> torch.Tensor:
    now = read(model, episodes)
    padded_NC = now.log_probs_NC.isinf()
    spread_N = now.log_probs_NC.masked_fill(padded_NC, 0.0).sum(-1) / (~padded_NC).sum(-1)
    return (-(1 - smoothing) * now.chosen_N - smoothing * spread_N).mean()


# ---- 7. Credit per turn: generalised advantage estimation -----------------------------------------------------------
def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """delta_t = r_t + gamma V(s_t+1) - V(s_t); A_t = delta_t + gamma lam A_t+1. V is 0 after the last turn."""
    advantages, following, running = [0.0] * len(rewards), 0.0, 0.0
    for t in reversed(range(len(rewards))):
        running = rewards[t] + gamma * following - values[t] + gamma * lam * running
        advantages[t], following = running, values[t]
    return advantages


def credit(episodes: Sequence[Episode], gamma: float, lam: float) -> None:
    """Give every turn its advantage (mean 0, standard deviation 1 over all turns) and the critic's target."""
    turns = [turn for episode in episodes for turn in episode.turns]
    raw = [a for e in episodes for a in gae([t.reward for t in e.turns], [t.value for t in e.turns], gamma, lam)]
    mean, deviation = statistics.fmean(raw), statistics.pstdev(raw) + 1e-8
    for turn, advantage in zip(turns, raw, strict=True):
        turn.advantage, turn.target = (advantage - mean) / deviation, advantage + turn.value


# ---- 8. PPO ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PPO:
    iterations: int = 24
    games: int = 48
    minibatches: int = 4
    learning_rate: float = 3e-4
    value_learning_rate: float = 3e-3
    gamma: float = 0.93  # a wasted step costs 7 % of what is still to come
    lam: float = 0.9
    clip: float = 0.2
    value_coef: float = 0.5
    entropy_coef: float = 0.02
    kl_coef: float = 0.01


def ppo_loss(model: ActorCritic, reference: ActorCritic, part: list[Episode], cfg: PPO, policy: bool) -> torch.Tensor:
    """Clipped surrogate with the ratio of whole actions, entropy bonus, KL to the reference, value loss."""
    now, turns = read(model, part), [turn for episode in part for turn in episode.turns]
    columns = zip(*((turn.log_prob, turn.advantage, turn.target) for turn in turns), strict=True)
    old_T, advantages_T, targets_T = (torch.tensor(column) for column in columns)
    value_loss = cfg.value_coef * 0.5 * ((now.values_T - targets_T) ** 2).mean()
    if not policy:
        return value_loss
    ratio_T = (now.per_turn(now.chosen_N) - old_T).exp()
    surrogate_T = torch.minimum(ratio_T * advantages_T, ratio_T.clamp(1 - cfg.clip, 1 + cfg.clip) * advantages_T)
    with torch.no_grad():
        reference_NC = read(reference, part).log_probs_NC
    # padded children have probability 0, and 0 times minus infinity would be NaN
    probabilities_NC, logs_NC = now.log_probs_NC.exp(), now.log_probs_NC.masked_fill(now.log_probs_NC.isinf(), 0.0)
    entropy_T = now.per_turn(-(probabilities_NC * logs_NC).sum(-1))
    gap_NC = logs_NC - reference_NC.masked_fill(reference_NC.isinf(), 0.0)
    kl_T = now.per_turn((probabilities_NC * gap_NC).sum(-1))
    return value_loss + (-surrogate_T - cfg.entropy_coef * entropy_T + cfg.kl_coef * kl_T).mean()


def ppo(model: ActorCritic, encode: Encode, cfg: PPO, seed: int) -> None:
    rng, reference = random.Random(seed), copy.deepcopy(model)
    groups = [{"params": model.lm.parameters()}, {"params": model.critic.parameters(), "lr": cfg.value_learning_rate}]
    optimizer = torch.optim.AdamW(groups, lr=cfg.learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
    for iteration in range(cfg.iterations):
        episodes = Play(model, encode, rng.sample(range(1000), cfg.games), rng, greedy=False).run()
        credit(episodes, cfg.gamma, cfg.lam)
        for part in filter(None, (episodes[i :: cfg.minibatches] for i in range(cfg.minibatches))):
            # the first two iterations train only the critic: their advantages would be noise
            step(optimizer, ppo_loss(model, reference, part, cfg, policy=iteration >= 2))
        report(f"PPO {iteration + 1}", episodes)


def step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
    optimizer.step()


# ---- 9. Evaluation, and the whole run --------------------------------------------------------------------------------
def wilson(wins: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a success rate (Wilson 1927)."""
    centre, half = wins / n + z * z / (2 * n), z * math.sqrt(wins / n * (1 - wins / n) / n + z * z / (4 * n * n))
    return max(0.0, centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)


def report(name: str, episodes: Sequence[Episode]) -> float:
    wins = sum(episode.outcome == "won" for episode in episodes)
    low, high = wilson(wins, len(episodes))
    print(f"{name:<14} {wins / len(episodes):>6.1%} of {len(episodes)} games won  [{low:.1%}, {high:.1%}]", flush=True)
    return wins / len(episodes)


def load(source: str) -> tuple[ActorCritic, Encode]:
    tokenizer = AutoTokenizer.from_pretrained(source)
    lm = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, use_safetensors=True)
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    options = {"add_special_tokens": False, "split_special_tokens": True}  # game text never becomes a special token
    return ActorCritic(lm), functools.cache(lambda t: (bos if t == HEADER else []) + tokenizer.encode(t, **options))


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default=str(Path(__file__).parents[1] / "src/grue/models/embedded"))
    sizes = {"demonstrations": 600, "iterations": PPO.iterations, "games": PPO.games, "test-games": 100, "seed": 0}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    args = parser.parse_args(arguments)
    torch.manual_seed(args.seed)
    model, encode = load(args.model)
    test = range(10_000, 10_000 + args.test_games)

    def measure(name: str, greedy: bool = True) -> float:
        return report(name, Play(model, encode, test, random.Random(0), greedy).run())

    found = {"teacher": report("teacher", [demonstration(seed, encode) for seed in test]), "base": measure("base")}
    demos = [demonstration(s, encode, omit=0.2 * (s % 3 > 0)) for s in range(args.demonstrations)]
    random.Random(args.seed).shuffle(demos)
    optimizer = torch.optim.AdamW(model.lm.parameters(), lr=1e-3, weight_decay=0.01)
    for first in range(0, len(demos), 16):
        step(optimizer, sft_loss(model, demos[first : first + 16], smoothing=0.02))
    found["sft"] = measure("SFT")
    ppo(model, encode, PPO(iterations=args.iterations, games=args.games), args.seed)
    return found | {"ppo": measure("PPO"), "ppo_sampled": measure("PPO, sampled", greedy=False)}


if __name__ == "__main__":
    main()
