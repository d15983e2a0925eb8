"""Run the stages that are not done yet, each with what the ones before it have left in the run directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grue.config import Config
from grue.errors import ConfigError
from grue.games.native import check_engine
from grue.launch import this_command
from grue.models.out_of_memory import explained_memory
from grue.models.skeleton import check_model
from grue.names import PLAYED_IN, TRAINING, StageName
from grue.process_group import join
from grue.progress import Progress
from grue.report import html
from grue.report.terminal import show_results
from grue.stages.announce import described, hint_at_processes, plan, tell_adopted
from grue.stages.checks import (
    check_before,
    check_games,
    check_learning,
    check_ready,
    check_trackers,
    is_plain,
    warn_settings,
    warn_unfinished,
)
from grue.stages.dagger import check_adviser, dagger
from grue.stages.demos import check_first_look, demos, lost_demos
from grue.stages.final import final_results, lost_rows, measure
from grue.stages.opening import open_run
from grue.stages.ppo import ppo
from grue.stages.session import Session, open_session
from grue.stages.sft import sft
from grue.stages.trained import check_trained
from grue.storage.contents import is_done, read_results
from grue.tracking.beside import show_finished


def run_all(config: Config, out: Path | str, *, say: Progress, again: bool = False) -> dict[str, Any]:
    """Every stage that is not done yet, then the report. Returns the results."""
    start, out = time.monotonic(), Path(out)
    processes = join()
    with processes.together():
        check_trackers(config)
        check_learning(config, processes)
        for stage in TRAINING:
            if again or not is_done(out, stage):  # what has been trained stays as it is
                check_games(stage, config, say)
        if not (out / "stages.json").exists():  # no folder is left behind, nor a plan shown, for what cannot begin
            check_engine(config.game.name)
            if not is_plain(config):
                check_model(config.model, config.policy)
    run = open_run(out, config, "demos" if again else "", processes)
    missing = [name for name in config.stages if not run.is_done(name)]
    if {*TRAINING} & set(missing):
        if "demos" not in missing and lost_demos(run):
            missing.insert(0, "demos")
        if "eval" not in missing:  # what an earlier command measured was other weights
            missing.append("eval")
    if missing:
        warn_settings(config, say)
    say(plan(config, out) if missing else f"all is done in {out}; --again starts over and deletes what is there")
    if hint := hint_at_processes(config, processes) if missing else "":
        say(hint)
    results = None if missing else read_results(out)
    if results is None:
        with open_session(run, config, say, processes) as session:
            with run.changed_unless_refused():
                if "demos" in missing:
                    check_first_look(session)
                if "dagger" in missing:
                    check_adviser(session)
            if not missing and lost_rows(session):  # what is lost is measured again
                missing = ["eval"]
            for name in missing:
                _do(session, name)
            wall_s = None if run.resumed else time.monotonic() - start
            results = final_results(session, wall_s=wall_s, command=this_command()) if processes.leads else {}
    if not processes.leads:
        return results
    tell_adopted(run, say)
    if not missing:
        show_finished(config.track, out, say)
    _show(results, out, say)
    return results


def run_stage(name: StageName, config: Config, out: Path, *, say: Progress, again: bool = False) -> dict[str, Any]:
    """One stage on a run directory. A finished stage is only repeated with `again`."""
    processes = join()
    with processes.together():
        check_trackers(config)
        if not (out / "stages.json").exists():
            check_engine(config.game.name)
        if name in TRAINING:
            check_learning(config, processes)
            check_games(name, config, say)
        if name == "dagger" and not config.dagger.rounds:
            raise ConfigError("dagger.rounds is 0", hint=f"for example: grue dagger {out} dagger.rounds=5")
        if name == "eval":  # before games are played
            check_trained(out, config)
        undone = again or not is_done(out, name)
        if undone and (out / "config.yaml").exists():  # before it adopts settings for a stage that cannot begin
            check_ready(name, out, config)
    if not (out / "config.yaml").exists():
        say(f"{described(config)}; into {out}")
    run = open_run(out, config, name if again else "", processes, name)
    if name == "eval":
        warn_unfinished(run, say)
    missing = not run.is_done(name) or (name == "demos" and lost_demos(run))  # what is lost is recorded again
    if not missing and (name != "eval" or read_results(out) is not None):
        if processes.leads:
            show_finished(config.track, out, say)
        tell_adopted(run, say)
        say(f"{name} is done in {out}; --again repeats it, and deletes what later stages left")
        return run.facts(name)
    if missing:
        warn_settings(config, say)
    with open_session(run, config, say, processes) as session:
        with run.changed_unless_refused():
            if name == "demos" and missing:
                check_first_look(session)
            if name == "dagger":
                check_adviser(session)
        if missing or (name == "eval" and lost_rows(session)):
            _do(session, name)
        if name == "eval" and processes.leads:
            results = final_results(session, wall_s=None, command=this_command())
            _show(results, out, say)
            return results
    return run.facts(name)


def _show(results: Mapping[str, Any], out: Path, say: Progress) -> None:
    show_results(results, say)
    say(f"report: {html.render(out)}")


def _do(session: Session, name: StageName) -> None:
    with session.run.changed_unless_refused():
        check_before(session, name)
    tell_adopted(session.run, session.say)
    start = time.monotonic()
    if session.run.lost:
        session.say(f"what {_listed(session.run.lost)} left in {session.run.out} is deleted")
    elif name in TRAINING and session.run.is_done("eval"):
        session.say(f"{name} goes on, so what it has learnt is evaluated again afterwards")
    session.interrupt.safe_point = "after this iteration" if name == "ppo" else "at the next safe point"
    session.run.begin(name)
    session.trackers.start()  # not earlier: only now is it forgotten what was sent of a stage that starts over
    session.processes.wait()  # what starts over is empty now, for all of them
    try:
        with explained_memory(session.config, name):
            facts = _WORK[name](session) if session.run.leads or name != "demos" else {}
    finally:
        session.run.add_seconds(name, time.monotonic() - start)
    if name in TRAINING:
        facts = {**(facts or {}), PLAYED_IN: session.number_format}
    session.run.done(name, **(facts or {}))
    session.processes.wait()


def _listed(names: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _eval(session: Session) -> dict[str, Any]:
    measure(session)
    return {}


_WORK: dict[StageName, Callable[[Session], dict[str, Any] | None]] = {
    "demos": demos,
    "sft": sft,
    "dagger": dagger,
    "ppo": ppo,
    "eval": _eval,
}
