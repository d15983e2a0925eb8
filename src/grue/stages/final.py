"""The final table: every policy of a run on the same games, greedy and sampled, with intervals.

Each row is kept in evaluation.jsonl as soon as it is measured, so an interrupted evaluation goes on where it stopped.
The test fold is only touched here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from grue.errors import DataError, GameError
from grue.evaluate.evaluate import evaluate
from grue.evaluate.failures import failures_of
from grue.evaluate.runs import measured_games
from grue.evaluate.summary import compare, summarise, with_problems
from grue.evaluate.tales import mean_score, tales_scores
from grue.games import Game, what_checks
from grue.games.each import play_each
from grue.games.play import Player, play
from grue.games.spread import has_few_games
from grue.games.teachers import teacher
from grue.hardware import hardware, versions
from grue.names import FURTHEST_FIRST, POLICIES, RUN_FOLDS, TRAINING
from grue.policy.decision import Decoding
from grue.storage import episodes, jsonl
from grue.storage.contents import evaluation_name, read_evaluation, read_metrics
from grue.storage.run import Run
from grue.types import Episode, Observation, Task

if TYPE_CHECKING:
    from grue.config import EvalConfig
    from grue.progress import Bar
    from grue.stages.session import Session

SCRIPTED = "scripted"  # the decoding of players without a model


class Row(NamedTuple):
    """One line of the table: who plays what, and how actions are taken."""

    policy: str
    fold: str
    decoding: str
    games: int

    @property
    def name(self) -> str:
        return evaluation_name(self.policy, self.fold, self.decoding)


def scripted_players(session: Session) -> tuple[str, ...]:
    """Random play if the game lists valid actions, its own solution if it has one, and the teacher if there is one."""
    random = ("random",) if session.lists_actions else ()
    gold = ("gold",) if session.solves_itself else ()
    demos = session.config.demos
    return tuple(dict.fromkeys((*random, *gold, *((demos.teacher,) if demos.games else ()))))


def trained_policies(session: Session) -> tuple[str, ...]:
    """The base, unless it is not wanted, and those that were trained."""
    config = session.config
    trained = tuple(name for name in TRAINING if config.lengths[name])
    return trained if trained and not config.eval.base else ("base", *trained)


def side_games(cfg: EvalConfig) -> int:
    """Number of games of each fold other than the reported one: no more than of that one."""
    return min(cfg.side_games, cfg.games)


def rows(session: Session) -> list[Row]:
    """Every row that the table needs: all policies on the evaluation fold, and on the others beside it."""
    cfg = session.config.eval
    wanted = []
    scripted = scripted_players(session)
    for policy in (*scripted, *trained_policies(session)):
        decodings = (SCRIPTED,) if policy in scripted else cfg.decodings
        wanted += [Row(policy, cfg.fold, decoding, cfg.games) for decoding in decodings]
        if beside := side_games(cfg):
            wanted += [Row(policy, fold, decodings[0], beside) for fold in RUN_FOLDS if fold != cfg.fold]
    return wanted


def measure(session: Session) -> None:
    """Play every row that is not in evaluation.jsonl yet."""
    known = _read(session)
    missing = [row for row in rows(session) if row.name not in known]
    loaded, tasks = "", {row.name: session.tasks(row.fold, row.games) for row in missing}
    last = ""
    with session.say.bar("evaluation", sum(map(len, tasks.values())), unit="games") as bar:
        bar.pace(least=0)  # scripted players are a hundred times as fast
        for row in missing:
            session.processes.check_interrupt(session.interrupt)
            if row.policy in POLICIES and row.policy != loaded:
                session.load(row.policy)
                if not loaded:
                    bar.pace(least=min(session.config.eval.slots, len(tasks[row.name])))
                loaded = row.policy
            playing = f"{row.policy} {row.fold} {row.decoding}"
            bar.advance(0, note=f"{playing} ...{last}")
            cfg = session.config.eval
            played = with_problems(_play(session, row, tasks[row.name], bar), session.problems(tasks[row.name]))
            _tell_failures(played, row, session)
            result = summarise(played, fold=row.fold, bootstrap=cfg.bootstrap)
            if cfg.restarts and (score := _tales(session, row, played)) is not None:
                result["tales"] = score
            if session.run.leads:
                file = session.run.episodes(row.name)
                file.unlink(missing_ok=True)
                episodes.append(file, [_outline(episode) for episode in played])
                jsonl.append(session.run.evaluation_file, [{"row": row.name, "result": result}])
            measured = f"{playing}: {result['success'] or 0:.1%}"
            last = f"; {measured}"
            bar.advance(0, note=measured)


def lost_rows(session: Session) -> bool:
    """Are rows missing from the table of a finished evaluation? Its damaged lines may have been deleted."""
    known = _read(session)
    return any(row.name not in known for row in rows(session))


def _tell_failures(played: Sequence[Episode], row: Row, session: Session) -> None:
    """Warn of games of a row that failed. GameError if all have: such a row says nothing, and is not kept."""
    found = failures_of(played)
    # a teacher may know no solution of any of these games: its row stays empty, and the others are measured
    if found.all and (row.decoding != SCRIPTED or row.policy == "random"):
        raise GameError(
            f"all {found.games} {row.fold} games failed, played by {row.policy}: {found.error}",
            hint=f"{what_checks(session.config.game.name)}; then the same command goes on",
        )
    found.warn(row.name, session.say)


def final_results(
    session: Session, *, wall_s: float | None, command: str, earlier: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Gather what has been measured into results.json. What it says of the machine stays as in `earlier` results."""
    run, config = session.run, session.config
    measured = _read(session)
    folds: dict[str, dict[str, Any]] = {fold: {} for fold in RUN_FOLDS}
    trained = {"dagger": _env_steps(run, "dagger")}
    trained["ppo"] = trained["dagger"] + _env_steps(run, "ppo")
    for row in rows(session):
        result = {**measured[row.name], "env_steps_trained": trained.get(row.policy, 0)}
        folds[row.fold].setdefault(row.policy, {"decoding": {}})["decoding"][row.decoding] = result
    for entry in read_evaluation(run.out):
        if "api" in entry:  # measured by grue eval --api, in addition to the run's own rows
            key = entry["api"]
            decodings = folds[key["fold"]].setdefault(key["policy"], {"decoding": {}})["decoding"]
            decodings[key["decoding"]] = {**entry["result"], "env_steps_trained": 0}
    seconds = {name: run.seconds(name) for name in config.stages}
    before = earlier or {}
    results = {
        "schema": 1,
        "preset": config.preset,
        "seed": config.seed,
        "command": command,
        "wall_s": wall_s if wall_s is not None else round(sum(seconds.values()), 1),
        "stages": seconds,
        "hardware": before.get("hardware") or hardware(),
        "versions": before.get("versions") or versions(),
        "policies": folds[config.eval.fold],
        **{fold: found for fold, found in folds.items() if fold != config.eval.fold and found},
        "paired": _paired(session),
    }
    run.write_results(results)
    return results


def _env_steps(run: Run, stage: str) -> int:
    """Environment steps that a stage has trained on so far, finished or not."""
    if run.is_done(stage):
        return int(run.facts(stage).get("env_steps", 0))
    return max((int(row.get("env_steps_trained", 0)) for row in read_metrics(run.out, stage)), default=0)


def _paired(session: Session) -> list[dict[str, Any]]:
    """The policy that was trained last against the others on the same games, greedy where there is a choice."""
    cfg, found, trained = session.config.eval, [], trained_policies(session)
    experts = tuple(name for name in scripted_players(session) if name != "random")
    best = next((name for name in FURTHEST_FIRST if name in trained), None)
    for other in ("base", "sft", "dagger", *experts):
        if best is None or other not in (*trained, *experts) or other == best:
            continue
        decoding = "greedy" if "greedy" in cfg.decodings else cfg.decodings[0]
        ours = Row(best, cfg.fold, decoding, cfg.games)
        theirs = Row(other, cfg.fold, SCRIPTED if other in experts else decoding, cfg.games)
        played = [measured_games(session.run.out, row.name) for row in (ours, theirs)]
        try:
            result = compare(*played, bootstrap=cfg.bootstrap)
        except DataError as error:  # all games of one of them have crashed, as the table shows
            session.say.warn(f"{best} and {other} cannot be compared: {error.message}")
            continue
        found.append({"a": best, "b": other, "decoding": decoding, **result})
    return found


def _tales(session: Session, row: Row, first: Sequence[Episode]) -> float | None:
    """The mean TALES score: games restart within their step limit. Deterministic players gain nothing by that."""
    plays = {episode.task.seed: episode for episode in first}

    def attempt(tasks: Sequence[Task], number: int) -> Sequence[Episode]:
        if number == 0 or row.decoding == "greedy" or (row.decoding == SCRIPTED and row.policy != "random"):
            return [plays[task.seed] for task in tasks]
        session.processes.check_interrupt(session.interrupt)
        return _play(session, row, tasks, None, number)

    return mean_score(tales_scores(attempt, [episode.task for episode in first], session.config.game.limit))


def _play(session: Session, row: Row, tasks: Sequence[Task], bar: Bar | None, attempt: int = 0) -> list[Episode]:
    """One episode per task, with other draws in each `attempt`. Without a bar no progress is shown."""
    if row.decoding == SCRIPTED:
        return _play_scripted(session, row.policy, tasks, bar, attempt)
    cfg = session.config.eval
    decoding = Decoding(row.decoding == "greedy", session.config.sampling_temperature)
    return evaluate(
        session.policy(),
        session.games(session.slots(cfg.slots)),
        tasks,
        decoding,
        context=session.config.model.context,
        player=row.policy,
        # the other processes play as many meanwhile
        on_episode=(lambda _: bar.advance(session.processes.count)) if bar else None,
        seed=f"evaluate/{attempt}" if attempt else "evaluate",
        processes=session.processes,
    )


def _play_scripted(session: Session, name: str, tasks: Sequence[Task], bar: Bar | None, attempt: int) -> list[Episode]:
    # not the seed of the run: in evaluation draws depend on their place alone
    seats = [(game, teacher(name, game, attempt)) for game in session.scripted_games()]
    played = []

    def play_one(seat: tuple[Game, Player], task: Task) -> Episode:
        game, player = seat
        return play(game, task, player)

    with closing(play_each(seats, session.processes.share(tasks), play_one)) as found:
        for episode in found:
            played.append(episode)
            if bar:
                bar.advance(session.processes.count)
    return session.processes.gather(played)


def _outline(episode: Episode) -> Episode:
    """The episode's end without its turns: enough for paired differences, and small.

    Where a fold repeats its games, also its beginning, which tells what problem it posed.
    """
    began = episode.first if has_few_games(episode.task) else None
    final = replace(began or Observation("", "", "", None, 0.0), score=episode.score)
    return replace(episode, turns=(), segments=(), final=final)


def _read(session: Session) -> dict[str, Any]:
    return {entry["row"]: entry["result"] for entry in read_evaluation(session.run.out)}
