"""What is refused or warned about before a stage begins: problems that would otherwise only show after hours."""

from __future__ import annotations

from pathlib import Path

from grue.config import Config, idle_settings
from grue.errors import DataError, needs
from grue.games.training import check_training
from grue.models.load import default_device
from grue.models.out_of_memory import explained_memory
from grue.models.sharding import check_sharding
from grue.models.skeleton import check_attention
from grue.models.sources import EMBEDDED, EMBEDDED_POSITIONS
from grue.names import TRAINING
from grue.parallel import Processes
from grue.progress import Progress
from grue.stages.demos import check_teacher, first_errors
from grue.stages.final import trained_policies
from grue.stages.lessons import check_demonstrations
from grue.stages.session import Session
from grue.stages.trained import check_weights
from grue.storage.contents import is_done
from grue.storage.run import Run


def warn_settings(config: Config, say: Progress) -> None:
    """Say which settings do nothing, or cost much for nothing."""
    for words in idle_settings(config):
        say.warn(words)
    if config.model.dtype == "float16" and default_device() == "cpu":
        say.warn("model.dtype=float16 is for GPUs: on a CPU it is many times slower than auto")


def warn_unfinished(run: Run, say: Progress) -> None:
    """Whoever stops early may look at the result, and should know that it is unfinished."""
    for stage in TRAINING:
        if run.is_broken_off(stage):
            say.warn(
                f"{stage} is not finished in {run.out}: this measures its weights so far. "
                f"grue {stage} {run.out} finishes it, and then it is measured again"
            )


def check_ready(stage: str, out: Path, config: Config) -> None:
    """Raise an error if the weights that a stage begins with are missing, or may still change."""
    if stage == "ppo" and config.dagger.rounds:
        if not is_done(out, "dagger"):
            raise DataError(
                f"DAgger is not done in {out}, but dagger.rounds is {config.dagger.rounds}",
                hint=f"finish it with grue dagger {out}, or leave it out: grue sft {out} dagger.rounds=0 --again",
            )
        check_weights(out, "dagger")
    elif stage in ("dagger", "ppo"):
        if not is_done(out, "sft"):  # which hands the base on, where the settings skip it
            raise DataError(f"SFT is not done in {out}", hint=f"begin or finish it: grue sft {out}")
        check_weights(out, "sft")
    elif stage == "sft" and not config.sft.epochs and not is_done(out, "demos"):  # which looks at the game
        raise DataError(f"the games of {out} have not been looked at", hint=f"first: grue demos {out}")


def is_plain(config: Config) -> bool:
    """Is it a model that cannot be refused? Then a run begins at once, without a check."""
    model = config.model
    known = model.name == EMBEDDED and model.adapter == "none" and model.context <= EMBEDDED_POSITIONS
    return known and config.policy.template == "plain"


def check_games(stage: str, config: Config, say: Progress) -> None:
    """Refuse settings that ask of a game what it cannot do, which would otherwise only show after hours."""
    (game, params), ppo = (config.game.name, config.game.params), config.ppo
    if stage == "sft" and config.sft.epochs:
        check_training(game, params, config.sft.rename, stage=stage)
    if stage == "dagger" and config.dagger.rounds:
        check_training(game, params, config.dagger.rename, stage=stage)
    if stage == "ppo" and ppo.iterations:
        check_training(game, params, ppo.rename, ppo.hidden_state)
        if ppo.game_baseline and not ppo.asks_critic:
            say.warn("ppo.game_baseline is fitted but not used: ppo.group_weight=1 leaves GAE out")


def check_trackers(config: Config) -> None:
    for tracker in config.track:
        needs(tracker, feature=f"track={tracker}")


def check_learning(config: Config, processes: Processes) -> None:
    """ConfigError if the model cannot learn with these settings."""
    model = config.model
    check_sharding(model, processes)
    check_attention(model.attention, config.policy.kind)
    for setting, plain in (("optimizer", "adamw"), ("quantize", "none")):
        if getattr(model, setting) != plain:
            needs("bitsandbytes", feature=f"model.{setting}={getattr(model, setting)}")


def check_begins(session: Session, fold: str) -> None:
    """The error of a game of `fold` that cannot begin, if two more cannot either: no engine, or no file."""
    (game,) = session.games(1)
    if errors := first_errors(session, fold, game.reset):
        raise errors[0]


def check_before(session: Session, name: str) -> None:
    """Raise an error if a stage cannot succeed: once begun, its settings are fixed, and --again has deleted files."""
    run = session.run
    if {*TRAINING, "eval"} & {*run.lost}:  # the work of hours is not deleted for a model that cannot be loaded
        with explained_memory(session.config, name):
            _ = session.model
            if name == "eval":  # nor is a table for policies that are no longer those that played
                for policy in trained_policies(session):
                    session.load(policy)
        if name != "demos":  # whose teacher begins one
            check_begins(session, session.config.eval.fold if name == "eval" else "train")
    if name == "demos":
        check_teacher(session)
    else:
        check_ready(name, run.out, session.config)
    # the baseline of PPO is told how many steps each took
    if session.config.learns_from_demos(name) or (name == "ppo" and session.config.ppo.game_baseline):
        check_demonstrations(session)
