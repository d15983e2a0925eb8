"""Do the stages of a run that are not done yet, each with what the ones before it have left in the run's folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from grue.config import Config, LearningConfig, ModelConfig, idle_settings
from grue.errors import ConfigError, DataError, needs
from grue.games.training import check_training
from grue.launch import this_command
from grue.models.out_of_memory import explained_memory
from grue.models.sharding import check_sharding
from grue.models.skeleton import check_attention, check_model
from grue.models.sources import EMBEDDED, EMBEDDED_POSITIONS
from grue.parallel import Processes, join
from grue.progress import Progress
from grue.report import html
from grue.rollout.pack import Sample
from grue.stages.dagger import check_adviser, dagger
from grue.stages.demos import check_first_look, check_teacher, demo_steps, demos, lost_demos
from grue.stages.final import FOLDS, final_results, measure, side_games
from grue.stages.lessons import check_demonstrations, lessons
from grue.stages.opening import open_run
from grue.stages.session import Session, open_session
from grue.stages.show import keep_shown
from grue.stages.trained import check_trained, check_weights
from grue.storage.contents import read_results, read_stages
from grue.storage.left import TRAINING
from grue.storage.run import Run
from grue.tracking.beside import show_finished
from grue.train.learner import Learner
from grue.train.ppo import train_ppo
from grue.train.sft import train_sft

StageName = Literal["demos", "sft", "dagger", "ppo", "eval"]


def run_all(config: Config, out: Path, *, say: Progress, again: bool = False) -> dict[str, Any]:
    """Every stage that is not done yet, then the report. Returns the results."""
    start = time.monotonic()
    processes = join()
    with processes.together():
        _check_trackers(config)
        _check_learning(config, processes)
        done = read_stages(out)
        for stage in TRAINING:
            if again or done.get(stage, {}).get("state") != "done":  # what has been trained stays as it is
                _check_games(stage, config, say)
        if not _is_plain(config) and not (out / "stages.json").exists():
            check_model(config.model, config.policy)
    run = open_run(out, config, "demos" if again else "", processes)
    wanted = [name for name in STAGES if name != "dagger" or config.dagger.rounds]
    missing = [name for name in wanted if not run.is_done(name)]
    if {*TRAINING} & set(missing):
        if "demos" not in missing and lost_demos(run):
            missing.insert(0, "demos")
        if "eval" not in missing:  # what an earlier command has measured is of other weights
            missing.append("eval")
    if missing:
        _warn_idle(config, say)
    say(plan(config, out) if missing else f"all is done in {out}; --again begins anew, and deletes what is there")
    results = None if missing else read_results(out)
    if results is None:
        with open_session(run, config, say, processes) as session:
            with run.changed_unless_refused():
                if "demos" in missing:
                    check_first_look(session)
                if "dagger" in missing:
                    check_adviser(session)
            for name in missing:
                _do(session, name)
            wall_s = None if run.resumed else time.monotonic() - start
            results = final_results(session, wall_s=wall_s, command=this_command()) if processes.leads else {}
    if not processes.leads:
        return results
    if not missing:
        show_finished(config.track, out, say)
    page = html.render(out)
    say(f"report: {page}")
    return results


def run_stage(name: StageName, config: Config, out: Path, *, say: Progress, again: bool = False) -> dict[str, Any]:
    """One stage on a run directory. A finished stage is only repeated with `again`."""
    processes = join()
    with processes.together():
        _check_trackers(config)
        if name in TRAINING:
            _check_learning(config, processes)
            _check_games(name, config, say)
        if name == "dagger" and not config.dagger.rounds:
            raise ConfigError("dagger.rounds is 0", hint=f"for example: grue dagger {out} dagger.rounds=5")
        if name == "eval":  # before games are played
            check_trained(out, config)
        undone = again or read_stages(out).get(name, {}).get("state") != "done"
        if undone and (out / "config.yaml").exists():  # before it takes over settings of a stage that cannot begin
            _check_ready(name, out, config)
    if not (out / "config.yaml").exists():
        say(f"{_run_described(config)}; into {out}")
    run = open_run(out, config, name if again else "", processes, name)
    if name == "eval":
        _warn_unfinished(run, say)
    missing = not run.is_done(name) or (name == "demos" and lost_demos(run))  # what is lost is recorded again
    if not missing and (name != "eval" or read_results(out) is not None):
        if processes.leads:
            show_finished(config.track, out, say)
        say(f"{name} is done in {out}; --again repeats it, and deletes what later stages left")
        return run.facts(name)
    if missing:
        _warn_idle(config, say)
    with open_session(run, config, say, processes) as session:
        if name == "dagger":
            with run.changed_unless_refused():
                check_adviser(session)
        if missing:
            _do(session, name)
        if name == "eval" and processes.leads:
            results = final_results(session, wall_s=None, command=this_command())
            say(f"report: {html.render(out)}")
            return results
    return run.facts(name)


def _warn_idle(config: Config, say: Progress) -> None:
    for words in idle_settings(config):
        say.warn(words)


def _warn_unfinished(run: Run, say: Progress) -> None:
    """Whoever stops early may look at the result, and should know what it is."""
    for stage in TRAINING:
        if run.is_broken_off(stage):
            say.warn(
                f"{stage} is not finished in {run.out}: this measures its best weights so far. "
                f"grue {stage} {run.out} goes on with it, and it is measured again"
            )


def _check_ready(stage: str, out: Path, config: Config) -> None:
    """An error where the weights that a stage begins with are not there."""
    if stage == "ppo" and config.dagger.rounds:
        if read_stages(out).get("dagger", {}).get("state") != "done":  # what is there may still change
            raise DataError(
                f"DAgger is not done in {out}, and dagger.rounds is {config.dagger.rounds}",
                hint=f"grue dagger {out}, or dagger.rounds=0 to go without",
            )
    elif stage in ("dagger", "ppo"):
        check_weights(out, "sft")


def _is_plain(config: Config) -> bool:
    """Is it a model that cannot be refused? Then a run begins at once, without looking."""
    model = config.model
    known = model.name == EMBEDDED and model.adapter == "none" and model.context <= EMBEDDED_POSITIONS
    return known and config.policy.template == "plain"


def _check_games(stage: str, config: Config, say: Progress) -> None:
    """Refuse what would only come to light after hours: settings that ask of a game what it cannot do."""
    game, ppo = config.game.name, config.ppo
    if stage == "sft" and config.sft.epochs:
        check_training(game, config.sft.rename, stage=stage)
    if stage == "dagger" and config.dagger.rounds:
        check_training(game, config.dagger.rename, stage=stage)
    if stage == "ppo" and ppo.iterations:
        check_training(game, ppo.rename, ppo.hidden_state)
        if ppo.game_baseline and ppo.group_weight == 1:
            say.warn("ppo.game_baseline is fitted and not used: ppo.group_weight=1 leaves GAE out")


def _check_trackers(config: Config) -> None:
    for tracker in config.track:
        needs(tracker, feature=f"track={tracker}")


def _check_learning(config: Config, processes: Processes) -> None:
    """ConfigError where the model cannot learn with these settings."""
    model = config.model
    check_sharding(model, processes)
    check_attention(model.attention, config.policy.kind)
    for setting, plain in (("optimizer", "adamw"), ("quantize", "none")):
        if getattr(model, setting) != plain:
            needs("bitsandbytes", feature=f"model.{setting}={getattr(model, setting)}")


def plan(config: Config, out: Path) -> str:
    """What is about to happen, in a few lines."""
    decodings = " and ".join(config.eval.decodings)
    dagger = f"{config.dagger.rounds} rounds of {config.dagger.games_per_round} train games"
    sides = [fold for fold in FOLDS if fold != config.eval.fold and side_games(config.eval)]
    beside = f"; {side_games(config.eval)} of {' and '.join(sides)}" if sides else ""
    corrections = [f"  dagger {dagger}, corrected by {config.dagger.teacher}"] if config.dagger.rounds else []
    return "\n".join(
        [
            _run_described(config),
            f"  demos  {config.demos.games} train games played by {config.demos.teacher}",
            f"  sft    {config.sft.epochs} epoch{'s' if config.sft.epochs != 1 else ''}",
            *corrections,
            f"  ppo    {config.ppo.iterations} iterations of {config.ppo.episodes_per_iteration} train games",
            f"  eval   {config.eval.games} {config.eval.fold} games for each policy, {decodings}{beside}",
            f"  into   {out}; Ctrl-C saves, and the same command goes on",
        ]
    )


def _run_described(config: Config) -> str:
    game = config.game
    played = " ".join([game.name, ",".join(f"{key}={value}" for key, value in game.params.items())]).strip()
    return f"{config.preset}: {played}, {game.limit} steps; model {_described(config.model)}; seed {config.seed}"


def _described(model: ModelConfig) -> str:
    """The model, and which of its weights learn, since `model.lora_*` without an adapter says nothing."""
    stored = "" if model.quantize == "none" else f" on {model.quantize}"
    learns = "all weights learn" if model.adapter == "none" else f"LoRA of rank {model.lora_rank}{stored} learns"
    return f"{model.name} ({learns})"


def _do(session: Session, name: str) -> None:
    with session.run.changed_unless_refused():
        _check_before(session, name)
    start = time.monotonic()
    if session.run.lost:
        session.say(f"what {_listed(session.run.lost)} left in {session.run.out} is deleted")
    elif name in TRAINING and session.run.is_done("eval"):
        session.say(f"{name} goes on, so what it has learnt is evaluated again afterwards")
    session.run.begin(name)
    session.trackers.start()  # not before: what has been sent of a stage that starts over is forgotten now
    session.processes.wait()  # what begins anew is empty now, for all of them
    try:
        with explained_memory(session.config, name):
            facts = STAGES[name](session) if session.run.leads or name != "demos" else {}
    finally:
        session.run.add_seconds(name, time.monotonic() - start)
    session.run.done(name, **(facts or {}))
    session.processes.wait()


def _listed(names: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _check_before(session: Session, name: str) -> None:
    """An error where a stage cannot succeed: once it has begun, its settings are settled, and --again has deleted."""
    run = session.run
    if {*TRAINING, "eval"} & {*run.lost}:  # what took hours is not deleted for a model that cannot be loaded
        with explained_memory(session.config, name):
            _ = session.model
    if name == "demos":
        check_teacher(session)
    elif name == "sft":
        check_demonstrations(session)
    else:
        _check_ready(name, run.out, session.config)
    if name == "ppo" and session.config.ppo.game_baseline:  # which is told how long each of them took
        check_demonstrations(session)


def _sft(session: Session) -> dict[str, Any]:
    cfg, config = session.config.sft, session.config
    session.load("base")
    keep_shown(session, "base", "before training")
    names = f"{config.seed}/sft/names"

    @lru_cache(maxsize=1)
    def items_of(reading: int) -> list[Sample]:
        return lessons(session, names + (f"/{reading}" if reading else ""), cfg.rename, "demos", "replays")

    learner = _learner(session, cfg, dropout=True)
    # names are drawn anew for each epoch; without renaming all epochs read the same
    count = train_sft(
        session.run,
        config,
        learner,
        lambda epoch: items_of(epoch if cfg.rename else 0),
        session.say,
        session.interrupt,
    )
    if cfg.epochs:
        keep_shown(session, "sft", "after SFT")
    return {"samples": count, "optimiser_steps": learner.step_count}


def _ppo(session: Session) -> dict[str, Any]:
    cfg, config = session.config.ppo, session.config
    if not cfg.iterations:
        session.say("PPO is skipped: ppo.iterations=0")
        return {}
    session.load("dagger" if config.dagger.rounds else "sft")
    learner = _learner(session, cfg, value_learning_rate=0.0 if cfg.value_passes else cfg.value_learning_rate)
    facts = train_ppo(
        session.run,
        config,
        learner,
        session.encoder,
        session.games(session.slots(cfg.slots)),
        session.tasks("train"),
        session.tasks("dev", cfg.dev_games),
        session.say,
        session.interrupt,
        demo_steps(session) if cfg.game_baseline else None,
    )
    keep_shown(session, "ppo", "after PPO")
    return dict(facts)


def _eval(session: Session) -> dict[str, Any]:
    measure(session)
    return {}


def _learner(session: Session, cfg: LearningConfig, **changes: Any) -> Learner:
    return Learner.of(session.model, session.config.model, cfg, processes=session.processes, **changes)


STAGES: dict[str, Callable[[Session], dict[str, Any] | None]] = {
    "demos": demos,
    "sft": _sft,
    "dagger": dagger,
    "ppo": _ppo,
    "eval": _eval,
}
