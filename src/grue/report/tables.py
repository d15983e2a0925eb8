"""results.json as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grue.names import RUN_FOLDS, TRAINING
from grue.report.metrics import policy_rank
from grue.report.text import as_number


@dataclass(frozen=True, slots=True)
class Row:
    """One policy, one decoding, one fold. None where results.json does not say."""

    policy: str
    decoding: str
    fold: str
    games: int | None
    failed: int | None
    success: float | None
    success_ci95: tuple[float, float] | None
    score: float | None
    score_ci95: tuple[float, float] | None
    steps_mean: float | None
    limit: float | None
    lost: float | None
    invalid: float | None
    success_failed_as_loss: float | None
    seeds: tuple[float, float] | None
    step_limit: float | None
    verbs: tuple[tuple[str, float], ...]
    tales: float | None = None
    problems: int | None = None  # that the games pose, if some pose the same one


def chose_on_dev(config: Mapping[str, Any] | None, policy: str) -> bool:
    """Were the weights of `policy` chosen among checkpoints by how they did on dev games? Yes if nothing says no."""
    stage = (config or {}).get(policy)
    every = stage.get("dev_every", 1) if isinstance(stage, dict) else 1
    return policy in TRAINING and policy != "sft" and bool(every)


def main_fold(results: Mapping[str, Any]) -> str:
    """The fold that "policies" was measured on; test if nothing says otherwise."""
    policies = results.get("policies")
    for entry in policies.values() if isinstance(policies, dict) else ():
        decodings = entry.get("decoding") if isinstance(entry, dict) else None
        for result in decodings.values() if isinstance(decodings, dict) else ():
            if isinstance(result, dict) and result.get("fold") in RUN_FOLDS:
                return str(result["fold"])
    return "test"


def rows(results: Mapping[str, Any], fold: str = "") -> list[Row]:
    """The rows of one fold, scripted players first. The main fold is under "policies", others under their names."""
    found = []
    fold = fold or main_fold(results)
    for policy, entry in _policies(results, fold).items():
        decodings = entry.get("decoding") if isinstance(entry, dict) else None
        for decoding, result in (decodings if isinstance(decodings, dict) else {}).items():
            if isinstance(result, dict):
                found.append(_row(str(policy), str(decoding), fold, result))
    order = {"scripted": 0, "greedy": 1, "sampled": 2}
    return sorted(found, key=lambda row: (*policy_rank(row.policy), order.get(row.decoding, 3), row.decoding))


def by_policy(found: Sequence[Row]) -> dict[str, Row]:
    """One row for each policy, used in comparisons: the sampled one only if nothing else was measured."""
    chosen: dict[str, Row] = {}
    for row in found:
        if row.policy not in chosen or (chosen[row.policy].decoding == "sampled") > (row.decoding == "sampled"):
            chosen[row.policy] = row
    return chosen


def none_won(found: Sequence[Row], *policies: str) -> bool:
    """Did none of the `policies` win a game? Then only scores tell them apart."""
    return not any(row.success for row in found if row.policy in policies)


def folds(results: Mapping[str, Any]) -> list[str]:
    """The folds that have rows, in the order train, dev, test."""
    return [fold for fold in RUN_FOLDS if rows(results, fold)]


def _policies(results: Mapping[str, Any], fold: str) -> dict[str, Any]:
    found = results.get("policies" if fold == main_fold(results) else fold)
    if isinstance(found, dict) and isinstance(found.get("policies"), dict):
        found = found["policies"]
    return found if isinstance(found, dict) else {}


def _row(policy: str, decoding: str, fold: str, result: Mapping[str, Any]) -> Row:
    games, failed = as_number(result.get("games")), as_number(result.get("failed"))
    problems = as_number(result.get("problems"))
    verbs = result.get("verbs")
    counted = [(str(verb), as_number(count)) for verb, count in verbs.items()] if isinstance(verbs, dict) else []
    return Row(
        policy=policy,
        decoding=decoding,
        fold=str(result.get("fold", fold)),
        games=None if games is None else int(games),
        failed=None if failed is None else int(failed),
        success=_share(result.get("success")),
        success_ci95=interval(result.get("success_ci95")),
        score=as_number(result.get("score")),
        score_ci95=interval(result.get("score_ci95")),
        steps_mean=as_number(result.get("steps_mean")),
        limit=_share(result.get("limit")),
        lost=_share(result.get("lost")),
        invalid=_share(result.get("invalid")),
        success_failed_as_loss=_share(result.get("success_failed_as_loss")),
        seeds=interval(result.get("seeds")),
        step_limit=as_number(result.get("step_limit")),
        verbs=tuple((verb, count) for verb, count in counted if count is not None and count > 0),
        tales=_share(result.get("tales")),
        problems=None if problems is None else int(problems),
    )


def interval(data: object) -> tuple[float, float] | None:
    """[low, high] as a pair, or None for anything else."""
    if not isinstance(data, (list, tuple)) or len(data) != 2:
        return None
    low, high = as_number(data[0]), as_number(data[1])
    return None if low is None or high is None else (min(low, high), max(low, high))


def _share(data: object) -> float | None:
    value = as_number(data)
    return None if value is None else min(max(value, 0.0), 1.0)
