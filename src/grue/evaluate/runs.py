"""Several runs side by side: means over the seeds of one setting, and differences between settings.

Runs whose settings differ in the seed alone are trainings of one kind. All are compared on the games that each of them
finished. An interval over seeds needs two trainings of a kind; where there is one it is over games alone, and says so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grue.config import Config, flat
from grue.errors import DataError
from grue.evaluate.bootstrap import paired_difference, paired_wins
from grue.evaluate.seeds import difference_over_seeds, mean_over_seeds
from grue.evaluate.stats import FloatArray, Interval, by_problem, never_certain, not_surer
from grue.evaluate.summary import (
    Played,
    by_game,
    least_score,
    most_difference,
    posed,
    score_interval,
    shared,
    success_interval,
)
from grue.names import POLICIES, STAGES, SWITCHES, TRAINING
from grue.storage import episodes
from grue.storage.contents import (
    check_distinct,
    episodes_file,
    evaluation_name,
    is_done,
    read_evaluation,
    read_run_config,
    read_stages,
)
from grue.storage.settled import check_unedited
from grue.types import Episode, Task

MEASURES = {"success": "won", "score": "score"}  # what is said -> the attribute of `Played`
DECODINGS = ("greedy", "sampled")

Games = Mapping[Task, Played]


@dataclass(frozen=True)
class _Run:
    out: Path
    config: Config
    played: dict[str, Games]  # by decoding


def compare_runs(outs: Sequence[Path], policy: str | None = None, fold: str | None = None) -> dict[str, Any]:
    """What `grue compare` prints: kinds of training with their runs and means, and the later kinds less the first.

    `policy` is by default the furthest that all runs have measured, `fold` that of the first run's evaluation.
    DataError where runs were not evaluated, or share no game.
    """
    check_distinct(outs)
    configs = {out: read_run_config(out) for out in outs}
    for out in outs:
        if not (out / "stages.json").exists() and (out / "episodes").exists():
            raise DataError(f"{out / 'stages.json'} is missing, which says how far the run has come", hint="restore it")
        if not is_done(out, "eval"):
            raise DataError(f"{out} has not been evaluated to its end", hint=f"grue run {out} finishes it")
        check_unedited(out, configs[out], read_stages(out))
    fold = fold or configs[outs[0]].eval.fold
    asked = [policy] if policy else POLICIES[::-1]  # the furthest-trained first
    measured = {out: [p for p in asked if _decodings(out, p, fold)] for out in outs}
    found = next((p for p in asked if all(p in here for here in measured.values())), None)
    if found is None:
        words = "; ".join(f"{out}: {', '.join(here) or 'none'}" for out, here in measured.items())
        raise DataError(
            f"not all runs hold {fold} games of {policy or 'the same policy'} ({words})",
            hint="--policy and --fold choose",
        )
    decodings = [d for d in DECODINGS if all(d in _decodings(out, found, fold) for out in outs)]
    if not decodings:
        raise DataError(f"the runs measured {found} with different decodings", hint="eval.decodings, then grue eval")
    runs = [
        _Run(out, config, {d: by_game(measured_games(out, evaluation_name(found, fold, d))) for d in decodings})
        for out, config in configs.items()
    ]
    games = {d: _common([run.played[d] for run in runs]) for d in decodings}
    kinds = _kinds(runs, found)
    resamples = max(config.eval.bootstrap for config in configs.values())
    names = _differing([settings for settings, _ in kinds])
    return {
        "policy": found,
        # where none was asked for: the policies that were trained further, but not in all runs
        "further": {str(out): here[: here.index(found)] for out, here in measured.items()},
        # runs whose weights of this policy were measured before its training was over
        "unfinished": [str(out) for out in outs if _is_unfinished(out, found)],
        "fold": fold,
        "games": {d: len(common) for d, common in games.items()},
        "played": {d: [len(run.played[d]) for run in runs] for d in decodings},
        "left_out": {d: len({t for run in runs for t in run.played[d]}) - len(games[d]) for d in decodings},
        "kinds": [
            {
                "settings": {name: settings[name] for name in names},
                "runs": [_row(run, games) for run in members],
                "repeated_seeds": sorted(s for s, n in Counter(r.config.seed for r in members).items() if n > 1)
                if found in TRAINING
                else [],  # nothing was trained
                **{d: _mean([run.played[d] for run in members], games[d], resamples) for d in decodings},
            }
            for settings, members in kinds
        ],
        "differences": [
            {"a": number, "b": 0, **_difference(members, kinds[0][1], games, resamples)}
            for number, (_, members) in enumerate(kinds)
            if number
        ],
    }


def _is_unfinished(out: Path, policy: str) -> bool:
    """Was the training of `policy`, which begins when those before it are done, broken off?"""
    return policy in TRAINING and read_stages(out).get(policy, {}).get("state") == "begun"


def measured_games(out: Path, name: str) -> list[Episode]:
    """The games behind the row `name` of a run's evaluation. DataError where not as many are left as were counted."""
    file = episodes_file(out, name)
    played = list(episodes.read(file, missing_ok=True))
    row = {entry["row"]: entry["result"] for entry in read_evaluation(out)}.get(name)
    if row is not None and len(played) != (counted := row["games"] + row["failed"]):
        raise DataError(
            f"{file} holds {len(played)} of the {counted} games that were measured",
            hint=f"put it back as it was, or measure again: grue eval {out} --again",
        )
    return played


def training_settings(config: Config, policy: str) -> dict[str, Any]:
    """What a training of `policy` has in common with those of other seeds: dotted key -> value.

    Of a stage that is left out, only that it is counts: the rest had no effect.
    """
    # sections that say nothing about the policy: those of later stages, and how it was measured
    beside = STAGES[STAGES.index(policy) + 1 :] if policy in STAGES else STAGES
    settings = flat(config, local=False)
    skipped = [stage for stage, setting in SWITCHES.items() if not settings[f"{stage}.{setting}"]]
    return {
        name: value
        for name, value in settings.items()
        if name not in ("preset", "seed")
        and (stage := name.split(".")[0]) not in beside
        and (stage not in skipped or name == f"{stage}.{SWITCHES[stage]}")
    }


def kind_letter(number: int) -> str:
    """A short name for the kind of this place: A, B, ... Z, #27."""
    return chr(ord("A") + number) if number < 26 else f"#{number + 1}"


def _file(out: Path, policy: str, fold: str, decoding: str) -> Path:
    return episodes_file(out, evaluation_name(policy, fold, decoding))


def _decodings(out: Path, policy: str, fold: str) -> list[str]:
    rows = {entry["row"] for entry in read_evaluation(out)}  # missing files of games are reported when they are read
    return [
        decoding
        for decoding in DECODINGS
        if evaluation_name(policy, fold, decoding) in rows or _file(out, policy, fold, decoding).exists()
    ]


def _common(played: Sequence[Games]) -> list[Task]:
    common = [task for task in played[0] if all(task in other for other in played)]
    if len(common) < 2 and len(played) == 1:
        raise DataError(f"{len(common)} finished games tell nothing", hint="raise eval.games, then grue eval --again")
    if len(common) < 2:
        raise DataError(
            f"the runs have {len(common) or 'no'} finished game{'' if common else 's'} in common",
            hint="the same game, parameters, step limit, fold and eval.games",
        )
    return common


def _kinds(runs: Sequence[_Run], policy: str) -> list[tuple[dict[str, Any], list[_Run]]]:
    """(settings, runs) of each kind of training, in the order in which they were named."""
    kinds: dict[str, tuple[dict[str, Any], list[_Run]]] = {}
    for run in runs:
        settings = training_settings(run.config, policy)
        settings["algorithm"] = read_stages(run.out).get(policy, {}).get("algorithm", "grue's")
        if "sampled" in run.played:  # a setting of the measurement, but it decides what was played
            settings["eval.temperature"] = run.config.sampling_temperature
        kinds.setdefault(json.dumps(settings, sort_keys=True), (settings, []))[1].append(run)
    return list(kinds.values())


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells kinds apart, among the settings that all of them have (see `training_settings`)."""
    common = [name for name in settings[0] if all(name in other for other in settings)]
    return [name for name in common if any(other[name] != settings[0][name] for other in settings)]


def _row(run: _Run, games: Mapping[str, Sequence[Task]]) -> dict[str, Any]:
    found: dict[str, Any] = {"run": str(run.out), "seed": run.config.seed}
    for decoding, common in games.items():
        rates = {name: _table([run.played[decoding]], common, which).mean() for name, which in MEASURES.items()}
        found[decoding] = {name: round(float(rate), 6) for name, rate in rates.items()}
    return found


def _table(played: Sequence[Games], games: Sequence[Task], which: str) -> FloatArray:
    """[runs, games] wins or scores, means over the plays of a game."""
    return np.array([[getattr(one[task], which) for task in games] for one in played], dtype=np.float64)


def _problems(played: Sequence[Games], games: Sequence[Task]) -> Sequence[Hashable]:
    """What each game poses; games that pose the same are not independent."""
    return [posed((one[task] for one in played), task) for task in games]


def _mean(played: Sequence[Games], games: Sequence[Task], resamples: int) -> dict[str, Any]:
    problems = _problems(played, games)
    tables = {name: _table(played, games, which) for name, which in MEASURES.items()}
    # runs that agree in every game, or were not trained (base), say no more than one of them
    agree = not any(bool(np.ptp(x_RG, axis=0).any()) for x_RG in tables.values())
    over_seeds = len(set(problems)) > 1 and not agree
    found: dict[str, Any] = {}
    for name, x_RG in tables.items():
        ends: Interval
        if over_seeds and np.ptp(x_RG) > 0:
            low, high = mean_over_seeds(by_problem(x_RG, problems))[1:3]
            least = 0.0 if name == "success" else least_score(x_RG.ravel().tolist())
            ends = Interval(max(least, low), min(1.0, high))  # 1 is the highest score there is
            if name == "success":
                ends = not_surer(ends, len(set(problems)))
        else:
            means = x_RG.mean(axis=0).tolist()
            if name == "success":
                interval = success_interval(means, shared(problems))
            else:
                interval = score_interval(means, shared(problems), resamples)
            ends = interval or Interval(0.0, 1.0)
        found |= {name: round(float(x_RG.mean()), 6), f"{name}_ci95": _rounded(ends)}
    return {**found, "over_seeds": over_seeds, "agree": agree}


def _difference(
    a: Sequence[_Run], b: Sequence[_Run], games: Mapping[str, Sequence[Task]], resamples: int
) -> dict[str, Any]:
    """By decoding, the mean of the runs a less that of the runs b, of success and of score."""
    differences = {}
    for decoding, common in games.items():
        problems = _problems([run.played[decoding] for run in (*a, *b)], common)
        over_seeds = min(len(a), len(b), len(set(problems))) > 1
        found: dict[str, Any] = {"over_seeds": over_seeds}
        for name, which in MEASURES.items():
            a_RG, b_SG = (_table([run.played[decoding] for run in runs], common, which) for runs in (a, b))
            if over_seeds:
                value, low, high, _ = difference_over_seeds(by_problem(a_RG, problems), by_problem(b_SG, problems))
                if name == "success":
                    low, high = never_certain(value, Interval(low, high), len(problems), len(set(problems)))
            else:
                between = paired_wins if name == "success" else paired_difference
                ours, theirs = a_RG.mean(axis=0), b_SG.mean(axis=0)
                value, low, high, _ = between(ours, theirs, resamples, clusters=shared(problems))
            if name == "score":
                most = most_difference([*a_RG.ravel(), *b_SG.ravel()])
                low, high = max(-most, low), min(most, high)
            found |= {name: round(value, 6), f"{name}_ci95": _rounded((low, high))}
        differences[decoding] = found
    return differences


def _rounded(ends: Sequence[float]) -> list[float]:
    return [round(float(end), 6) for end in ends]
