"""Notes about earlier episodes, found by how a game begins: BM25 (Robertson and Zaragoza 2009) over first observations.

Retrieved notes are game text, and untrusted like all of it: the encoder never turns them into special tokens, and a
policy that chooses can only choose valid actions, whatever it has been told.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import getattr_static
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from grue.errors import ConfigError, needs, whole_number
from grue.games.base import PROTECTED, Game, begin_reset, begin_step
from grue.games.copies import has_copies
from grue.games.spread import problem
from grue.games.teachers.optimal import SeesAll
from grue.types import Episode, Observation, Outcome, Task, Turn

_ASKED = ("gold", "rehearse", "equivalent", "plan", "advice", "state")  # what teachers ask; it moves no episode
_WORD = re.compile(r"[^\W_]+")  # letters and digits of any script


@dataclass(frozen=True, slots=True)
class Note:
    """What is remembered of one episode."""

    begins: str  # the first observation: what notes are found by
    text: str  # what the player is told
    task: Task
    actions: tuple[str, ...] = ()  # that `text` names


def note_of(episode: Episode, most: int = 20) -> Note | None:
    """The actions of an episode in order, with a + after those that scored, and how it ended.

    Detours (`direct`) and actions that the game did not list are left out, as are those after the first `most`. None
    for an episode with no actions left, and for one that crashed, whose end means nothing.
    """
    listed = direct([turn for turn in episode.turns if turn.valid])[: max(0, most)]
    if not listed or episode.failed:
        return None
    actions = ", ".join(turn.action + (" +" if turn.reward > 0 else "") for turn in listed)
    ended = {Outcome.WON: "won", Outcome.LOST: "lost"}.get(episode.outcome, "out of time")
    text = f"Before: {actions}. It was {ended}."
    return Note(episode.turns[0].observation.text, text, episode.task, tuple(turn.action for turn in listed))


def direct(turns: Sequence[Turn]) -> list[Turn]:
    """The turns without detours: where all that is shown comes again, what led back to it is left out.

    What was changed elsewhere meanwhile, such as a door opened, is then missing from the way.
    """
    kept: list[Turn] = []
    places: dict[tuple[object, ...], int] = {}  # what was seen -> index in `kept`
    for turn in turns:
        for undone in kept[places.get(_seen(turn), len(kept)) :]:
            places.pop(_seen(undone))
        del kept[len(places) :]
        places[_seen(turn)] = len(kept)
        kept.append(turn)
    return kept


def _seen(turn: Turn) -> tuple[object, ...]:
    """What tells places apart. Without the valid actions, "It is empty." would be the same sack in any room."""
    shown = turn.observation
    return shown.text, shown.inventory, shown.score, shown.actions


@runtime_checkable
class Recalls(Protocol):
    """What can tell the player of a game about earlier ones: a `Memory`, or `Memories`."""

    def told(self, task: Task, begins: str, count: int, *, own: bool) -> list[Note]: ...


class Memory:
    """Notes that never change: a new memory is made from more episodes."""

    def __init__(self, episodes: Iterable[Episode]) -> None:
        needs("bm25s", feature="a memory of episodes")
        # bm25s imports JAX if installed, which would reserve three quarters of a GPU's memory
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import bm25s

        self.notes = [note for episode in _with_turns(episodes) if (note := note_of(episode)) is not None]
        self.folds = {note.task.fold for note in self.notes}
        terms = [words(note.begins) for note in self.notes]
        self._index = bm25s.BM25() if any(terms) else None
        if self._index is not None:
            self._index.index(terms, show_progress=False)

    def __len__(self) -> int:
        return len(self.notes)

    def search(self, begins: str, count: int = 1, *, without: Task | None = None) -> list[Note]:
        """The `count` notes whose games begin most like `begins`, the best first, however little they share with it.

        Of equals the first one comes first, and what two notes say alike is told once. `without` leaves out notes about
        the problem that this game poses, whatever its step limit.
        """
        query = words(begins)
        if self._index is None or not query or count < 1:
            return []
        scores = self._index.get_scores(query)
        ranked = sorted(range(len(self.notes)), key=lambda place: (-float(scores[place]), place))
        posed = None if without is None else _problem(without, begins)
        found = (self.notes[place] for place in ranked)
        others = (note for note in found if posed is None or _problem(note.task, note.begins) != posed)
        chosen: dict[str, Note] = {}
        for note in others:
            chosen.setdefault(note.text, note)
            if len(chosen) == count:
                break
        return list(chosen.values())

    def told(self, task: Task, begins: str, count: int, *, own: bool) -> list[Note]:
        """What the player of `task` may be told. ConfigError where the memory holds games of a later fold."""
        later = self.folds & {*PROTECTED.get(task.fold, ())}
        if later:
            raise ConfigError(
                f"a {task.fold} game would be told of {' and '.join(sorted(later))} games",
                hint="make its memory of episodes of its own fold",
            )
        return self.search(begins, count, without=None if own else task)


class Memories:
    """The memories of many players, each of whom has been in `places` of the games: a game is told by its own player.

    The games of each fold are dealt out in the order of `episodes`, each with all its plays. With few places to
    confuse, the note that is found is more often about the game itself. A game that nobody has played is told nothing.
    """

    def __init__(self, episodes: Iterable[Episode], places: int) -> None:
        places = whole_number("places", places, least=1, hint="how many games each player has been in")
        played: dict[str, dict[Task, list[Episode]]] = {}
        for episode in _with_turns(episodes):
            played.setdefault(episode.task.fold, {}).setdefault(_place(episode.task), []).append(episode)
        self._of: dict[Task, Memory] = {}
        for games in played.values():
            for first in range(0, len(games), places):
                own = list(games)[first : first + places]
                memory = Memory(episode for place in own for episode in games[place])
                self._of |= dict.fromkeys(own, memory)

    def told(self, task: Task, begins: str, count: int, *, own: bool) -> list[Note]:
        """What the player of `task` may be told."""
        memory = self._of.get(_place(task))
        return [] if memory is None else memory.told(task, begins, count, own=own)


def _with_turns(episodes: Iterable[Episode]) -> list[Episode]:
    """The episodes. ConfigError for something else, or where none was kept with its turns: there is nothing to note."""
    if isinstance(episodes, str | bytes | Path | Mapping) or not isinstance(episodes, Iterable):
        hint = "episodes.read(FILE) of grue.storage reads those of a file; one episode alone is [episode]"
        raise ConfigError(f"a memory is made of episodes, not of a {type(episodes).__name__}", hint=hint)
    found = list(episodes)
    if found and not any(episode.turns or episode.failed for episode in found):
        raise ConfigError(
            f"none of these {len(found)} episodes holds its turns, so there is nothing to remember",
            hint="files of the evaluation hold outcomes alone; evaluate(...) of grue.evaluate gives whole episodes",
        )
    return found


def _place(task: Task) -> Task:
    """The task whatever its step limit: an earlier visit may have been longer."""
    return replace(task, limit=0)


class Remembering:
    """`game` with notes from `memory`, about games that begin like this one, added to its goal.

    The goal is at the head of the transcript, so notes are read once and the transcript stays append-only. `own` =
    False leaves out notes about this very problem, so that only other games help. A memory that holds games of a later
    fold raises ConfigError: a policy in training must not know the games that it is measured on.

    Teachers play it as they play `game`: it solves itself, saves and restores where `game` can.
    """

    def __init__(self, game: Game, memory: Recalls, count: int = 1, *, own: bool = True) -> None:
        if not isinstance(memory, Recalls):
            raise ConfigError(f"{type(memory).__name__} is no Memory", hint="Memory(episodes) makes one of episodes")
        self.inner, self._memory, self._own = game, memory, own
        self._count = whole_number("count", count, least=0, hint="how many notes a game is told")
        self._goal = ""
        for name in _ASKED:  # as attributes of the instance, which isinstance with a protocol sees, as in `Guarded`
            if callable(getattr_static(game, name, None)):
                setattr(self, name, getattr(game, name))

    def begin_reset(self, task: Task) -> None:
        begin_reset(self.inner, task)

    def reset(self, task: Task) -> Observation:
        observation = self.inner.reset(task)
        notes = self._memory.told(task, observation.text, self._count, own=self._own)
        self._goal = with_notes(observation.goal, notes)
        return replace(observation, goal=self._goal)

    def begin_step(self, action: str) -> None:
        begin_step(self.inner, action)

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        observation, reward, outcome = self.inner.step(action)
        return replace(observation, goal=self._goal), reward, outcome

    @property
    def history(self) -> tuple[str, ...]:
        """The actions so far, of a game that keeps them."""
        return cast(SeesAll, self.inner).history

    def save(self) -> tuple[str, Any]:
        """A point of the episode, with the goal and its notes, of a game that can `save`."""
        return self._goal, cast(Any, self.inner).save()

    def restore(self, saved: tuple[str, Any]) -> Observation:
        """Go back to a saved point."""
        goal, point = saved
        observation: Observation = cast(Any, self.inner).restore(point)
        self._goal = goal
        return replace(observation, goal=goal)

    def close(self) -> None:
        self.inner.close()


def with_notes(goal: str, notes: Iterable[Note]) -> str:
    """The goal with notes under it."""
    return "\n".join([goal, *(note.text for note in notes)])


def remembered(episode: Episode, memory: Recalls, count: int = 1, *, own: bool = True) -> Episode:
    """A played episode as if it had been played with `memory`: for demonstrations to fine-tune on."""
    if not episode.turns:
        return episode
    first = episode.turns[0].observation
    notes = memory.told(episode.task, first.text, count, own=own)
    goal = with_notes(first.goal, notes)
    turns = tuple(replace(turn, observation=replace(turn.observation, goal=goal)) for turn in episode.turns)
    return replace(episode, turns=turns)


def _problem(task: Task, begins: str) -> Hashable:
    if has_copies(task.game, task.params):  # another seed may make the same game, which then begins alike
        return (task.game, task.params, task.fold, begins)
    return problem(_place(task), Observation(begins, "", "", None, 0.0))


def words(text: str) -> list[str]:
    """Lower-case words and numbers: the terms of the index."""
    return _WORD.findall(text.lower())
