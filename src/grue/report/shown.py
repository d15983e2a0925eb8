"""Played episodes as the report shows them: episodes/shown.jsonl, one JSON object a line.

    {"policy": "ppo", "decoding": "greedy", "title": "after PPO", "task": {"game": ..., "params": ..., "fold": ...,
     "seed": 3, "limit": 16}, "outcome": "won", "score": 1.0, "task_text": "You are hungry! ...",
     "turns": [{"observation": "You are in the kitchen. ...", "action": "open fridge", "reward": 0.0,
                "value": 0.61, "log_prob": -0.02, "considered": [["open fridge", 0.98], ["look around", 0.01]],
                "valid": true}],
     "final": "You eat the meal. ...", "tokens": [["You", "read"], [" open", "branch"], [" fridge", "forced"]]}

`considered` is sorted by probability, the most probable first; a turn of `think` has a `thought` too, after which the
action was chosen. `value`, `log_prob`, `considered` and `tokens` may be null, empty or absent (scripted players have
none). Reading is tolerant: a line that is torn or wrong is left out and reported; unknown keys are ignored; lines of
the ordinary episode files are understood as well.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grue.errors import DataError, first_line
from grue.report.text import as_number
from grue.storage import jsonl
from grue.types import Episode, Observation, Task, Turn

CONSIDERED = 8  # actions shown for each turn
_MAX_TEXT = 20_000
_MAX_TURNS = 500
_MAX_TOKENS = 20_000
_OUTCOMES = ("won", "lost", "limit", "failed")


def readable(action: str) -> str:
    """An action as people read it: a policy that writes may have said nothing."""
    return action or "(nothing)"


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """One decision: what the model saw, what it did, and what it thought of the alternatives."""

    observation: str
    action: str
    reward: float = 0.0
    value: float | None = None  # the critic's estimate before the action
    log_prob: float | None = None  # nats
    considered: tuple[tuple[str, float], ...] = ()  # (action, probability), most probable first
    thought: str = ""  # what was written before the action (`think`)
    valid: bool = True  # False: the game did not list the action, or what was written is none

    @property
    def probability(self) -> float | None:
        """Of the action that was taken; as it was weighed, which a second pass has computed and rounded anew."""
        played = None if self.log_prob is None else math.exp(min(self.log_prob, 0.0))
        return dict(self.considered).get(self.action, played)

    def weighed(self, most: int = CONSIDERED) -> tuple[tuple[str, float | None], ...]:
        """The `most` likeliest actions, and the one that was taken if it is not among them; empty if none is known.

        What was written freely may be likelier than all that the game lists.
        """
        likeliest: tuple[tuple[str, float | None], ...] = self.considered[:most]
        if not likeliest or self.action in dict(likeliest):
            return likeliest
        return tuple(sorted([*likeliest, (self.action, self.probability)], key=lambda pair: -(pair[1] or 0.0)))

    @property
    def has_likelier(self) -> bool:
        """Was clearly another action likelier? A greedy choice token by token need not end at the likeliest one."""
        return bool(self.considered) and self.considered[0][1] > (self.probability or 0.0) + 0.01


@dataclass(frozen=True, slots=True)
class ShownEpisode:
    """One episode for a reader."""

    policy: str  # "ppo", "gold", ...
    decoding: str  # "greedy", "sampled", "scripted"
    title: str
    task: Task
    outcome: str
    score: float
    task_text: str
    turns: tuple[ShownTurn, ...]
    final: str
    tokens: tuple[tuple[str, str], ...] = ()  # (piece, role); roles: read, forced, branch
    more_turns: int = 0  # that were left out because there were too many to show
    more_tokens: int = 0

    @property
    def steps(self) -> int:
        """Turns of the episode, shown or not."""
        return len(self.turns) + self.more_turns


def from_episode(
    episode: Episode,
    *,
    policy: str,
    decoding: str,
    title: str,
    task_text: str | None = None,
    observations: Sequence[str] | None = None,
    considered: Sequence[Sequence[tuple[str, float]]] | None = None,
    valued: bool = True,
    tokens: Sequence[tuple[str, str]] = (),
) -> ShownEpisode:
    """A played episode, ready to be shown.

    `considered[t]` holds (action, probability) of turn t in any order; with it, the log-probs are shown too, and the
    critic's values unless `valued` is false. `observations[t]` and `task_text` replace the raw text with what the
    model read.
    """
    for name, given in (("considered", considered), ("observations", observations)):
        if given is not None and len(given) != episode.steps:
            raise DataError(f"{name} has {len(given)} turns, the episode has {episode.steps}")
    turns = []
    for t, turn in enumerate(episode.turns):
        weighed = sorted(considered[t], key=lambda pair: -pair[1])[:CONSIDERED] if considered is not None else []
        turns.append(
            ShownTurn(
                observation=observations[t] if observations is not None else turn.observation.text,
                action=turn.action,
                reward=turn.reward,
                value=turn.value if considered is not None and valued else None,
                log_prob=_of_action(turn, considered[t]) if considered is not None else None,
                considered=tuple((action, float(probability)) for action, probability in weighed),
                thought=turn.thought,
                valid=turn.valid,
            )
        )
    shown_first: Observation | None = episode.turns[0].observation if episode.turns else episode.final
    return ShownEpisode(
        policy=policy,
        decoding=decoding,
        title=title,
        task=episode.task,
        outcome=str(episode.outcome),
        score=episode.score,
        task_text=task_text if task_text is not None else (shown_first.goal if shown_first else ""),
        turns=tuple(turns),
        final=episode.final.text if episode.final is not None else episode.error,
        tokens=tuple(tokens),
    )


def _of_action(turn: Turn, considered: Sequence[tuple[str, float]]) -> float:
    """Log-probability of the action; that of a turn which begins with a thought is the thought's as well."""
    own = dict(considered).get(turn.action, 0.0) if turn.thought_ids else 0.0
    return math.log(own) if own > 0 else turn.log_prob


def append_shown(path: Path, episode: ShownEpisode) -> None:
    """Add one line. Values that are not finite become null."""
    jsonl.append(path, [asdict(episode)])


def read_shown(path: Path, most: int = 100) -> tuple[list[ShownEpisode], list[str]]:
    """(episodes, problems): at most `most` episodes, and a sentence for every line that was left out."""
    if path.is_symlink() or not path.is_file():
        return [], [f"{path.name} is not an ordinary file and was not read"]
    if not os.access(path, os.R_OK):
        return [], [f"{path.name} could not be read"]
    episodes: list[ShownEpisode] = []
    problems: list[str] = []
    with path.open("rb") as file:
        for number in itertools.count(1):
            line = file.readline(jsonl.MAX_LINE_BYTES)
            if not line:
                break
            if len(line) == jsonl.MAX_LINE_BYTES and not line.endswith(b"\n"):
                problems.append(f"{path.name} line {number} is longer than {len(line):,} bytes: reading stopped")
                break
            if len(episodes) == most:
                problems.append(f"{path.name}: only the first {most} episodes are shown")
                break
            try:
                if line.strip():
                    episodes.append(parse_shown(json.loads(line)))
            except (ValueError, RecursionError) as error:  # DataError, JSON and UTF-8 errors are ValueErrors
                problems.append(f"{path.name} line {number} was left out: {first_line(error)}")
    return episodes, problems


def parse_shown(data: object) -> ShownEpisode:
    """One decoded line. Raises DataError when it is not an episode at all."""
    if not isinstance(data, dict) or not isinstance(data.get("turns"), list):
        raise DataError("not an episode: an object with a list of turns is needed")
    turns = tuple(_turn(turn) for turn in data["turns"][:_MAX_TURNS])
    final = data.get("final")
    score = as_number(data.get("score"))
    if score is None:  # an ordinary episode file: the score is in the final observation
        score = as_number(final.get("score")) if isinstance(final, dict) else None
    outcome = _text(data.get("outcome"))
    return ShownEpisode(
        policy=_text(data.get("policy") or data.get("player")) or "unnamed",
        decoding=_text(data.get("decoding")) or "scripted",
        title=_text(data.get("title")),
        task=_task(data.get("task")),
        outcome=outcome if outcome in _OUTCOMES else "unknown",
        score=score or 0.0,
        task_text=_text(data.get("task_text") or data.get("goal")),
        turns=turns,
        final=_observation(final) or _text(data.get("error")),
        tokens=_pairs_of_text(data.get("tokens")),
        more_turns=len(data["turns"]) - len(turns),
        more_tokens=max(0, len(_list(data.get("tokens"))) - _MAX_TOKENS),
    )


def _turn(data: object) -> ShownTurn:
    if not isinstance(data, dict):
        raise DataError(f"a turn is {type(data).__name__}, not an object")
    pairs = [pair for pair in _list(data.get("considered"))[:CONSIDERED] if isinstance(pair, list) and len(pair) == 2]
    weighed = [(_text(action), as_number(probability)) for action, probability in pairs]
    considered = [(action, min(max(share, 0.0), 1.0)) for action, share in weighed if share is not None]
    return ShownTurn(
        # ordinary episode files keep the text in the turn itself
        observation=_observation(data.get("observation", data)),
        action=_text(data.get("action")),
        reward=as_number(data.get("reward")) or 0.0,
        value=as_number(data.get("value")),
        log_prob=as_number(data.get("log_prob")),
        considered=tuple(considered),
        thought=_text(data.get("thought")),
        valid=data.get("valid") is not False,
    )


def _task(data: object) -> Task:
    task = data if isinstance(data, dict) else {}
    seed, limit = as_number(task.get("seed")), as_number(task.get("limit"))
    return Task(
        game=_text(task.get("game")),
        params=_text(task.get("params")),
        fold=_text(task.get("fold")),
        seed=int(seed or 0),
        limit=int(limit or 0),
    )


def _observation(data: object) -> str:
    return _text(data.get("text")) if isinstance(data, dict) else _text(data)


def _pairs_of_text(data: object) -> tuple[tuple[str, str], ...]:
    pairs = (pair for pair in _list(data)[:_MAX_TOKENS] if isinstance(pair, list) and len(pair) == 2)
    return tuple((_text(piece), _text(role)) for piece, role in pairs)


def _list(data: object) -> list[Any]:
    return data if isinstance(data, list) else []


def _text(data: object) -> str:
    if not isinstance(data, str):
        return "" if data is None or isinstance(data, (dict, list)) else str(data)[:_MAX_TEXT]
    return data if len(data) <= _MAX_TEXT else data[:_MAX_TEXT] + " …"
