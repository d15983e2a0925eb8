"""The final table: every policy of a run on the same held-out games, greedy and sampled, with intervals.

Each row is kept in evaluation.jsonl as soon as it is measured, so an interrupted evaluation goes on where it stopped.
The test fold is only touched here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from grue.evaluate.evaluate import evaluate
from grue.evaluate.summary import compare, summarise
from grue.games.play import play
from grue.games.teachers import teacher
from grue.hardware import hardware, versions
from grue.policy.choose import Decoding
from grue.storage import episodes, jsonl
from grue.types import Episode, Observation, Task

if TYPE_CHECKING:
    from grue.progress import Bar
    from grue.stages.session import Session

TRAINED = ("base", "sft", "ppo")
SCRIPTED = ("random", "gold")


class Row(NamedTuple):
    """One line of the table: who plays what, and how actions are taken ("scripted" for players without a model)."""

    policy: str
    fold: str
    decoding: str
    games: int

    @property
    def name(self) -> str:
        return f"eval-{self.policy}-{self.fold}-{self.decoding}"


def rows(session: Session) -> list[Row]:
    """Everything the table needs: all policies on the evaluation fold, and the others beside it."""
    cfg = session.config.eval
    wanted = []
    for policy in (*SCRIPTED, *TRAINED):
        decodings = ("scripted",) if policy in SCRIPTED else cfg.decodings
        wanted += [Row(policy, cfg.fold, decoding, cfg.games) for decoding in decodings]
        if cfg.side_games:
            sides = [fold for fold in ("train", "dev", "test") if fold != cfg.fold]
            wanted += [Row(policy, fold, decodings[0], cfg.side_games) for fold in sides]
    return wanted


def measure(session: Session) -> None:
    """Play every row that is not in evaluation.jsonl yet."""
    known = _read(session)
    missing = [row for row in rows(session) if row.name not in known]
    loaded = ""
    with session.say.bar("evaluation", sum(row.games for row in missing), unit="games") as bar:
        for row in missing:
            session.processes.share_interrupt(session.interrupt)
            session.interrupt.check()
            if row.policy in TRAINED and row.policy != loaded:
                session.load(row.policy)
                loaded = row.policy
            played = _play(session, row, bar)
            result = summarise(played, fold=row.fold, bootstrap=session.config.eval.bootstrap, seed=session.config.seed)
            if session.run.leads:
                file = session.run.episodes(row.name)
                file.unlink(missing_ok=True)
                episodes.append(file, [_outline(episode) for episode in played])
                jsonl.append(_file(session), [{"row": row.name, "result": result}])
            bar.advance(0, note=f"{row.policy} {row.fold} {row.decoding}: {result['success'] or 0:.1%}")


def final_results(session: Session, *, wall_s: float | None, command: str) -> dict[str, Any]:
    """Gather what has been measured into results.json."""
    run, config = session.run, session.config
    measured = _read(session)
    folds: dict[str, dict[str, Any]] = {"train": {}, "dev": {}, "test": {}}
    trained = run.facts("ppo").get("env_steps", 0)
    for row in rows(session):
        result = {**measured[row.name], "env_steps_trained": trained if row.policy == "ppo" else 0}
        folds[row.fold].setdefault(row.policy, {"decoding": {}})["decoding"][row.decoding] = result
    for _, entry in jsonl.read(_file(session)):
        if "api" in entry:  # measured by grue eval --api, beside the rows of the run's own
            key = entry["api"]
            decodings = folds[key["fold"]].setdefault(key["policy"], {"decoding": {}})["decoding"]
            decodings[key["decoding"]] = {**entry["result"], "env_steps_trained": 0}
    seconds = {name: run.seconds(name) for name in ("demos", "sft", "ppo", "eval")}
    results = {
        "schema": 1,
        "preset": config.preset,
        "seed": config.seed,
        "command": command,
        "wall_s": wall_s if wall_s is not None else round(sum(seconds.values()), 1),
        "stages": seconds,
        "hardware": hardware(),
        "versions": versions(),
        "policies": folds[config.eval.fold],
        **{fold: found for fold, found in folds.items() if fold != config.eval.fold and found},
        "paired": _paired(session),
    }
    run.write_results(results)
    return results


def _paired(session: Session) -> list[dict[str, Any]]:
    """PPO against the others on the same games, greedy where there is a choice."""
    cfg, found = session.config.eval, []
    for other in ("base", "sft", "gold"):
        decoding = cfg.decodings[0]
        ours = session.run.episodes(Row("ppo", cfg.fold, decoding, cfg.games).name)
        theirs = session.run.episodes(
            Row(other, cfg.fold, "scripted" if other in SCRIPTED else decoding, cfg.games).name
        )
        result = compare(list(episodes.read(ours)), list(episodes.read(theirs)), bootstrap=cfg.bootstrap)
        found.append({"a": "ppo", "b": other, "decoding": decoding, **result})
    return found


def _play(session: Session, row: Row, bar: Bar) -> list[Episode]:
    tasks = session.tasks(row.fold, row.games)
    if row.policy in SCRIPTED:
        return _play_scripted(session, row.policy, tasks, bar)
    cfg = session.config.eval
    decoding = Decoding(row.decoding == "greedy", cfg.temperature, session.config.policy.top_p)
    return evaluate(
        session.player(),
        session.games(session.slots(cfg.slots)),
        tasks,
        decoding,
        columns=session.config.model.context,
        player=row.policy,
        on_episode=lambda _: bar.advance(session.processes.count),  # the others play as many meanwhile
        processes=session.processes,
    )


def _play_scripted(session: Session, name: str, tasks: Sequence[Task], bar: Bar) -> list[Episode]:
    (game,) = session.games(1)
    player = teacher(name, game, session.config.seed)
    played = []
    for task in session.processes.share(tasks):
        played.append(play(game, task, player))
        bar.advance(session.processes.count)
    return session.processes.gather(played)


def _outline(episode: Episode) -> Episode:
    """How it ended, without what happened: enough for paired differences, and small."""
    final = Observation("", "", "", None, episode.score)
    return replace(episode, turns=(), segments=(), final=final)


def _file(session: Session) -> Path:
    return session.run.out / "evaluation.jsonl"


def _read(session: Session) -> dict[str, Any]:
    return {entry["row"]: entry["result"] for _, entry in jsonl.read(_file(session))}
