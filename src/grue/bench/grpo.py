"""Turns per second of whole GRPO-style rounds, play and update: ours against TRL's GRPOTrainer playing our games."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grue.bench import Say
from grue.bench.common import Timed, alternate, facts, load, open_games, result, task_sets, threads
from grue.config import Config
from grue.errors import ConfigError, needs
from grue.games import Game
from grue.policy.actor import Actor
from grue.policy.choose import ChoosePolicy
from grue.policy.decision import Decoding
from grue.rollout.collect import collect
from grue.train.learner import Learner
from grue.train.ppo_update import Updater
from grue.train.reference import Reference
from grue.types import Task

if TYPE_CHECKING:
    from grue.bench.grpo_trl import Call, Count

GROUPED = {
    # credit of every turn: the score of its play less the mean over the plays of its game; no critic is trained
    "group_weight": 1.0,
    "gamma": 1.0,
    "normalise_advantages": False,
    "value_passes": 0,
    "value_coef": 0.0,
    "value_shares_trunk": False,
    "game_baseline": False,
    "bootstrap_at_limit": False,
    "hidden_state": False,
    "win_bonus": 0.0,
    "lost_penalty": 0.0,
    # one clipped pass in one optimiser step, without further loss terms
    "epochs": 1,
    "minibatches": 1,
    "warmup_iterations": 0,
    "kl_coef": 0.0,
    "entropy_coef": 0.0,
    "entropy_target": 0.0,
    "target_kl": 0.0,
}
SAME = (
    "the same model, compute dtype, threads, games, plays of a game, step limit and reward (the score at "
    "the end), actions sampled at temperature 1 among the valid ones, advantages of a play relative to its game's "
    "others over the round's deviation, one optimiser step (AdamW) per round, no reference model, no trained critic. "
    "Ours plays with `choose`, learns the log-probability of an action among the valid ones, and computes a value at "
    "each turn, which is not used; TRL writes a tool call, constrained to valid actions, and learns the "
    "log-probability of each of its tokens over the whole vocabulary"
)


@dataclass(slots=True)
class Ours:
    """Rounds of `collect` and one update, as in `grue ppo`."""

    policy: ChoosePolicy
    actor: Actor
    updater: Updater
    reference: Reference
    games: list[Game]
    context: int
    tokens: int = 0  # of all transcripts; each was read once while playing

    def round(self, tasks: Sequence[Task], number: int) -> int:
        """Play `tasks` and learn from them; returns the number of turns played."""
        self.actor.sync()
        decoding = Decoding(temperature=self.updater.config.ppo.temperature)
        episodes = collect(self.policy, self.games, tasks, decoding, seed=f"bench/{number}", context=self.context)
        self.tokens += sum(len(segment.ids) for episode in episodes for segment in episode.segments)
        # iterations 0, 5, 10, ... also measure the KL to the reference, which TRL does not: avoid these
        self.updater.update(episodes, 5 * number + 1, 1.0, self.reference)
        return sum(episode.steps for episode in episodes)


def run(
    config: Config, say: Say, *, games: int = 64, plays: int = 8, micro_batch: int = 32, repetitions: int = 3
) -> dict[str, Any]:
    """`repetitions` rounds of each side in turn, each of `games` episodes: `plays` of each of `games / plays` games.

    `micro_batch`: episodes per forward pass in TRL's update; ours fills its passes up to ppo.micro_tokens.
    """
    for module in ("trl", "datasets"):
        needs(module, feature="grue bench grpo")
    from grue.bench.grpo_trl import JSON, SHORT

    if games % plays or games % micro_batch:
        raise ConfigError(
            f"games={games} is not a multiple of plays={plays} and of micro_batch={micro_batch}",
            hint="for example games=64 plays=8 micro_batch=32",
        )
    cfg = config.ppo.model_copy(update={**GROUPED, "episodes_per_iteration": games, "plays_per_game": plays})
    config = config.model_copy(update={"ppo": cfg})
    different = task_sets(config, 2 * (repetitions + 1), games // plays)
    rounds = [[task for task in tasks for _ in range(plays)] for tasks in different]
    with threads(config) as thread_count, open_games(config, games) as seats:
        ours = ours_side(config, seats)
        say(f"TRL with calls of {sum(map(len, JSON))} tokens, and rounds of {games} games")
        usual = against(ours, rounds[::2], plays, micro_batch, JSON, say)
        say(f"TRL with calls of {sum(map(len, SHORT))} tokens")
        short = against(ours, rounds[1::2], plays, micro_batch, SHORT, say)
    common = {**facts(config, ours.actor.model, thread_count), "games": games * repetitions, "plays_per_game": plays}
    mine, theirs = usual.sides()
    (again, shortest), rates = short.sides(), short.rates()
    theirs |= {
        "cpu_ratio": round(mine["turns_per_cpu_s"] / theirs["turns_per_cpu_s"], 2),
        "ratio_short_calls": round(rates[0] / rates[1], 2),
        "cpu_ratio_short_calls": round(again["turns_per_cpu_s"] / shortest["turns_per_cpu_s"], 2),
        "short_calls": {"turns_per_s": round(rates[1], 2), **shortest},
    }
    return result("grpo", "turns", usual.measured, common | mine, common | theirs, SAME)


@dataclass(slots=True)
class Compared:
    """Measurements of both sides. `cpu`: processor seconds of this process, ours and theirs.

    Processor time is less disturbed by other work on the machine. It excludes the games, which run in Java's process
    on both sides.
    """

    measured: tuple[list[Timed], list[Timed]]
    cpu: list[float]
    tokens: int  # of our transcripts; each was read once while playing
    count: Count

    def rates(self) -> list[float]:
        """Median turns per second, ours and theirs."""
        return [statistics.median(timed.rate for timed in side) for side in self.measured]

    def sides(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The facts about both besides the rate."""
        count = self.count
        mine, theirs = self._side(0, self.tokens, self.tokens), self._side(1, count.transcripts, count.read)
        whole = sum(timed.seconds for timed in self.measured[1])
        theirs["generating_share"] = round(count.generating_s / whole, 3)
        theirs["confining_share"] = round(count.confining_s / whole, 3)
        return mine, theirs

    def _side(self, side: int, transcripts: int, read: int) -> dict[str, Any]:
        turns = sum(timed.count for timed in self.measured[side])
        return {
            "turns_per_cpu_s": round(turns / self.cpu[side], 2),
            "tokens_per_turn": round(transcripts / turns, 1),
            "tokens_per_s": round(transcripts / sum(timed.seconds for timed in self.measured[side]), 1),
            "tokens_read_per_turn": round(read / turns, 1),
        }


def against(
    ours: Ours, rounds: Sequence[Sequence[Task]], plays: int, micro_batch: int, call: Call, say: Say
) -> Compared:
    """Rounds of both sides in turn, after a warm-up on the last of `rounds`."""
    from grue.bench.grpo_trl import trl_side

    *rounds, warm_up = rounds
    cpu = [0.0, 0.0]

    def clocked(side: int, work: Callable[[], int]) -> int:
        start = time.process_time()
        turns = work()
        cpu[side] += time.process_time() - start
        return turns

    config = ours.updater.config
    with (
        tempfile.TemporaryDirectory() as folder,
        trl_side(config, Path(folder), warm_up, plays, micro_batch, call) as theirs,
    ):
        ours.round(warm_up, len(rounds))
        theirs.round(warm_up)
        count, ours.tokens = theirs.fresh_count(), 0
        measured = alternate(
            lambda n: clocked(0, lambda: ours.round(rounds[n], n)),
            lambda n: clocked(1, lambda: theirs.round(rounds[n])),
            len(rounds),
            "turns",
            say,
        )
        return Compared(measured, cpu, ours.tokens, count)


def ours_side(config: Config, games: list[Game]) -> Ours:
    """A fresh model as configured, ready for rounds."""
    model, encoder = load(config)
    cfg, actor = config.ppo, Actor(model, config.model.dtype)
    learner = Learner.of(model, config.model, cfg)
    policy = ChoosePolicy(actor.model, encoder)
    return Ours(policy, actor, Updater(config, learner, 0.0), Reference(model), games, config.model.context)
