"""Episodes as JSON lines: `to_dict` and `from_dict` are inverse, `append` and `read` use them on files.

But for `Observation.to_go`, which is not kept. The format is compact. An episode's goal is stored once; default values
are left out; a branch is [position, chosen, [children]], with the size of the vocabulary in place of children if all of
it could be chosen.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from grue.errors import DataError
from grue.storage import jsonl
from grue.types import Branch, Candidate, Episode, Observation, Outcome, Segment, Task, Turn

# Turn's optional fields have the same names in the file.
_TURN_DEFAULTS = {
    field.name: field.default
    for field in dataclasses.fields(Turn)
    if field.default is not dataclasses.MISSING and field.name not in ("branches", "candidates")
}


def append(path: Path | str, episodes: Iterable[Episode]) -> None:
    """Append episodes to a JSONL file."""
    if isinstance(episodes, Episode):
        raise DataError("append takes several episodes, not one", hint="append(path, [episode])")
    jsonl.append(Path(path), (to_dict(episode) for episode in episodes))


def read(path: Path | str, *, missing_ok: bool = False) -> Iterator[Episode]:
    """The episodes of a JSONL file, in order; with `missing_ok` none if there is no file.

    DataError names the file, or file and line.
    """
    if not missing_ok and not Path(path).exists():
        raise DataError(f"there is no file {path}", hint="runs keep their games in RUN/episodes")
    return (from_dict(row, where=where) for where, row in jsonl.read(Path(path)))


def leading(played: Iterable[Episode], tasks: Iterable[Task]) -> int:
    """How many of the first `tasks` were played, in their order; a line that was deleted or repeated ends them."""
    pairs = zip(played, tasks, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0].task.seed == pair[1].seed, pairs))


def to_dict(episode: Episode) -> dict[str, Any]:
    """A JSON form of an episode. DataError if a number in it is not finite."""
    goal = episode.turns[0].observation.goal if episode.turns else episode.final.goal if episode.final else ""
    data: dict[str, Any] = {
        "task": dataclasses.asdict(episode.task),
        "player": episode.player,
        "outcome": str(episode.outcome),
        "goal": goal,
        "turns": [_turn_to_dict(turn, goal) for turn in episode.turns],
        "final": _observation_to_dict(episode.final, goal) if episode.final is not None else None,
    }
    if episode.segments:
        data["segments"] = [list(segment.ids) for segment in episode.segments]
    if episode.error:
        data["error"] = episode.error
    if episode.last_value:
        data["last_value"] = _finite(episode.last_value, "last value")
    if episode.problem:
        data["problem"] = episode.problem
    return data


def from_dict(data: dict[str, Any], *, where: str = "episode") -> Episode:
    """The episode that `to_dict` wrote. DataError says `where` and what is wrong."""
    try:
        goal = _text(data["goal"])
        final = data["final"]
        return Episode(
            task=_task(data["task"]),
            player=_text(data["player"]),
            turns=tuple(_turn(turn, goal) for turn in data["turns"]),
            outcome=Outcome(data["outcome"]),
            final=_observation(final, goal) if final is not None else None,
            segments=tuple(Segment(_ids(ids)) for ids in data.get("segments", ())),
            error=_text(data.get("error", "")),
            last_value=_number(data.get("last_value", 0.0), float),
            problem=_text(data.get("problem", "")),
        )
    except KeyError as error:
        raise DataError(f"{where}: an episode without {error}", hint="was this file written by grue?") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where}: not an episode: {error}", hint="was this file written by grue?") from error


def _turn_to_dict(turn: Turn, goal: str) -> dict[str, Any]:
    data = _observation_to_dict(turn.observation, goal)
    data["action"] = turn.action
    data["reward"] = _finite(turn.reward, "reward")
    for name, default in _TURN_DEFAULTS.items():
        value = getattr(turn, name)
        if value != default:
            data[name] = _finite(value, name) if isinstance(value, float) else value
    if turn.branches:
        data["branches"] = [[b.position, b.chosen, children_to_json(b.children)] for b in turn.branches]
    if turn.candidates:
        data["candidates"] = [[candidate.divisor, list(candidate.ids)] for candidate in turn.candidates]
    return data


def children_to_json(children: Sequence[int]) -> int | list[int]:
    """The children of a branch; for the whole vocabulary only its size."""
    return len(children) if isinstance(children, range) else list(children)


def children_from_json(data: Any) -> Sequence[int]:
    """Inverse of `children_to_json`."""
    return range(data) if type(data) is int else _ids(data)


def _turn(data: dict[str, Any], goal: str) -> Turn:
    optional: dict[str, Any] = {}
    for name, default in _TURN_DEFAULTS.items():
        if name in data:
            optional[name] = _number(data[name], type(default))
    branches = tuple(
        Branch(_number(position, int), children_from_json(children), _number(chosen, int))
        for position, chosen, children in data.get("branches", ())
    )
    candidates = tuple(Candidate(_ids(ids), _number(divisor, float)) for divisor, ids in data.get("candidates", ()))
    return Turn(
        observation=_observation(data, goal),
        action=_text(data["action"]),
        reward=_number(data["reward"], float),
        branches=branches,
        candidates=candidates,
        **optional,
    )


def _observation_to_dict(observation: Observation, goal: str) -> dict[str, Any]:
    data: dict[str, Any] = {"text": observation.text}
    if observation.goal != goal:
        data["goal"] = observation.goal
    if observation.inventory:
        data["inventory"] = observation.inventory
    if observation.actions is not None:
        data["actions"] = list(observation.actions)
    data["score"] = _finite(observation.score, "score")
    return data


def _observation(data: dict[str, Any], goal: str) -> Observation:
    actions = data.get("actions")
    return Observation(
        text=_text(data["text"]),
        goal=_text(data.get("goal", goal)),
        inventory=_text(data.get("inventory", "")),
        actions=tuple(_text(action) for action in actions) if actions is not None else None,
        score=_number(data["score"], float),
    )


def _task(data: dict[str, Any]) -> Task:
    return Task(
        game=_text(data["game"]),
        params=_text(data["params"]),
        fold=_text(data["fold"]),
        seed=_number(data["seed"], int),
        limit=_number(data["limit"], int),
    )


def _finite(value: float, name: str) -> float:
    if not math.isfinite(value):
        raise DataError(f"an episode's {name} is {value}", hint="a policy or critic gave a number that is not finite")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} where a string is expected")
    return value


def _ids(values: Any) -> tuple[int, ...]:
    return tuple(_number(value, int) for value in values)


def _number(value: Any, kind: type) -> Any:
    """`value` if it is of `kind` (an int serves as a float); TypeError otherwise."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{value!r} where {kind.__name__} is expected")
    return value
