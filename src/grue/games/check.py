"""Check that a game keeps the contract of `base.Game`. For the games that ship, and for your own."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from numbers import Real

from grue.errors import GameError, GrueError
from grue.games.base import FOLDS, Game
from grue.games.faults import Guarded, cause_of, kind_of, named, place_of
from grue.games.renaming import RenamedOwn, own_names, static_renaming
from grue.games.teachers.scripted import CanRehearse, HasGold
from grue.types import Observation, Outcome, Task

NONSENSE = "frobnicate the grue"  # an action that no game knows
DRAWS = 20  # of names for each game: what goes wrong by chance may need many


@dataclass(frozen=True, slots=True)
class Checked:
    """What there was to check in a game."""

    gold_steps: int | None  # in which `gold()` wins; None where there is no such method, or no solution
    renames: bool  # has it a method `renaming`?


def check_game(factory: Callable[[], Game], task: Task, *, steps: int = 8) -> Checked:
    """Raise GameError naming the first promise of the contract that games from `factory` break on `task`."""
    made: list[Game] = []
    trail = _Trail()
    try:
        with _doing("making it (its class is called with the parameters, one text)"):
            made.append(first := factory())
            made.append(second := factory())
        with _doing("playing it", trail):
            _check_determinism(first, second, replace(task, limit=steps), trail)
            _check_limit(first, replace(task, limit=steps), trail)
            _check_seeds(first, task, trail)
            gold_steps = _check_gold(first, task, trail)
        with _doing("renaming things in it", trail):
            renames = _check_renaming(first, second, replace(task, limit=steps), trail)
        with _doing("closing it, twice,"):
            first.close()
            first.close()
        with _doing("a step after close"):
            _require(_raises(lambda: first.step("look")), "a step after close raises GameError")
        return Checked(gold_steps, renames)
    finally:
        for game in made:
            with suppress(Exception):  # a fault in closing was reported above, or something else has
                game.close()


@dataclass(slots=True)
class _Trail:
    """What was done with a game, so that whoever wrote it can do the same."""

    task: Task | None = None
    actions: list[str] = field(default_factory=list)

    def reset(self, game: Game, task: Task) -> Observation:
        self.task, self.actions = task, []
        return game.reset(task)

    def step(self, game: Game, action: str) -> tuple[Observation, float, Outcome | None]:
        self.actions.append(action)
        found = game.step(action)
        whole = isinstance(found, tuple) and len(found) == 3 and isinstance(found[0], Observation)
        _require(whole, "step gives (Observation, reward, outcome)", f"it gives {kind_of(found)}")
        _, reward, outcome = found
        number = isinstance(reward, Real) and math.isfinite(reward)
        _require(number, "a reward is a finite number", f"it is {reward!r:.60}")
        _require(outcome is not Outcome.FAILED, "a game that fails raises an exception, which can say why")
        return found

    def words(self) -> str:
        if self.task is None:
            return ""
        where = f"{self.task.fold} seed {self.task.seed}, limit {self.task.limit}"
        return f" ({where}, step {len(self.actions)}: {self.actions[-1]!r})" if self.actions else f" ({where}, reset)"


def _check_determinism(first: Game, second: Game, task: Task, trail: _Trail) -> None:
    """Equal tasks and equal actions give equal texts, in one game and across two."""
    here, there = trail.reset(first, task), second.reset(task)
    _require(isinstance(here, Observation), "reset gives an Observation", f"it gives {kind_of(here)}")
    for other in (first.reset(task), there):
        _require(here == other, "equal tasks give equal first observations", _difference(here, other))
    _check_observation(here)
    _require(bool(here.text), "the first observation has a text")  # later ones may be silent: simonsays from memory
    initial, total = here.score, 0.0
    outcome: Outcome | None = None
    draw = random.Random(f"check/{task.seed}")  # a game may draw from Random(seed) itself, and would be guessed
    for _ in range(task.limit):
        _check_observation(here)
        _require(here.actions != (), "there is a valid action while the game goes on, or None says that it lists none")
        action = draw.choice(here.actions) if here.actions else NONSENSE
        here, reward, outcome = trail.step(first, action)
        there, reward_there, outcome_there = second.step(action)
        total += reward
        same = (here, reward, outcome) == (there, reward_there, outcome_there)
        both = f"reward and outcome are {(reward, outcome)} and {(reward_there, outcome_there)}"
        _require(same, "equal actions give equal steps", _difference(here, there) or both)
        risen = here.score - initial
        sums = math.isclose(total, risen, abs_tol=1e-9)
        _require(sums, "rewards add up to the score", f"they add up to {total:g}, the score has risen by {risen:g}")
        known = outcome is None or isinstance(outcome, Outcome)
        _require(known, "an outcome is None or one of Outcome", f"it is {outcome!r:.60}")
        won = (outcome is Outcome.WON) == (here.score >= 1.0)
        _require(won, "a score of 1 is a win, and only that", f"score {here.score:g}, outcome {outcome}")
        if outcome is not None:
            break
    _require(outcome is not None, f"a limit of {task.limit} ends at step {task.limit}")
    _check_observation(here)
    _require(_raises(lambda: first.step(NONSENSE)), "a step after the end raises GameError")


def _check_observation(observation: Observation) -> None:
    actions = observation.actions
    _require(
        actions is None or isinstance(actions, tuple),
        "valid actions are a tuple, or None",
        f"they are {kind_of(actions)}",
    )
    stray = next((text for text in observation.texts if not isinstance(text, str)), "")
    _require(isinstance(stray, str), "text, goal, inventory and actions are str", f"one is {stray!r:.60}")
    _require(all(map(_is_text, observation.texts)), "texts are Unicode, without half characters (lone surrogates)")
    _require(bool(observation.goal), "an observation has a goal")
    score = observation.score
    _require(isinstance(score, Real) and -1.0 <= score <= 1.0, "a score is between -1 and 1", f"it is {score!r:.60}")
    if actions is not None:
        ordered = tuple(sorted(set(actions)))
        _require(actions == ordered, "valid actions are sorted, without doubles", f"they are {actions!r:.80}")
        odd = next((action for action in actions if action.strip().splitlines() != [action]), None)
        _require(odd is None, "a valid action is one line, without spaces around it", f"one is {odd!r}")


def _check_limit(game: Game, task: Task, trail: _Trail) -> None:
    """Nonsense costs a step, and the step that reaches the limit ends the episode."""
    for limit in (1, task.limit):
        trail.reset(game, replace(task, limit=limit))
        for step in range(1, limit + 1):
            _, reward, outcome = trail.step(game, NONSENSE)
            if outcome is Outcome.LOST:  # games that allow no mistake
                break
            _require(reward == 0.0, "an unknown action earns nothing", f"it earns {reward:g}")
            _require((outcome is Outcome.LIMIT) == (step == limit), f"a limit of {limit} ends at step {limit}")


def _check_seeds(game: Game, task: Task, trail: _Trail) -> None:
    other = next(seeds for name, seeds in FOLDS.items() if name != task.fold)
    refused = _raises(lambda: trail.reset(game, replace(task, seed=other[0])))
    _require(
        refused, "a seed outside its fold is refused", "reset takes it: call grue.games.base.check_seed(task) there"
    )


def _check_gold(game: Game, task: Task, trail: _Trail) -> int | None:
    """A game that can solve itself wins that way, given enough steps; returns how many it took."""
    if not isinstance(game, HasGold):
        return None
    trail.reset(game, replace(task, limit=1000))
    try:
        path = game.gold()
    except GameError:  # some engines have no solution for some seeds
        return None
    listed = isinstance(path, list) and all(isinstance(action, str) for action in path)
    _require(listed, "gold() gives a list of actions", f"it gives {path!r:.60}")
    outcome: Outcome | None = None
    for action in path:
        if outcome is None:
            observation, _, outcome = trail.step(game, action)
            _check_observation(observation)
    ended = f"after its {len(path)} actions the game {'goes on' if outcome is None else f'has ended: {outcome}'}"
    _require(outcome is Outcome.WON, "gold() is a way to win", ended)
    steps = len(trail.actions)
    if isinstance(game, CanRehearse):
        trail.reset(game, replace(task, limit=1000))
        _require(any(won for _, won in game.rehearse(path)), "rehearse(gold()) wins: it gives (listed, won) for each")
    return steps


def _check_renaming(plain: Game, other: Game, task: Task, trail: _Trail) -> bool:
    """A game that can rename things draws the same names again, and is played the same way with them.

    Returns whether it can.
    """
    if not isinstance(plain, Guarded):
        static_renaming(type(plain), task.game)  # refuses one that needs an instance
    renaming = getattr(plain, "renaming", None)
    if renaming is None:
        return False
    first = trail.reset(plain, task)
    try:
        drawn = [own_names(renaming, first, random.Random(f"names/{number // 2}")).there for number in range(2 * DRAWS)]
    except GameError as error:
        raise _BrokenError(error.message) from error
    _require(drawn[::2] == drawn[1::2], "renaming draws equal names from equal generators")
    renamed = RenamedOwn(other, renaming, "check", share=1.0)
    here, there = first, renamed.reset(task)
    names, changed = renamed.names.there, False
    draw = random.Random(f"check/{task.seed}")
    outcome: Outcome | None = None
    while outcome is None:
        changed |= here != there
        left = _names_left(there, names)
        _require(not left, "renaming leaves no old name in what is shown", f"{left!r} is (names are whole words)")
        listed, shown = here.actions, there.actions
        if listed is None or shown is None:
            break
        meant = sorted(map(renamed.meant, shown))
        _require(
            meant == list(listed),
            "renamed actions mean those that the game lists",
            f"{set(meant) ^ set(listed)} differ: are names drawn for things that this game shows later?",
        )
        action = draw.choice(shown)
        here, reward, outcome = trail.step(plain, renamed.meant(action))
        there, renamed_reward, renamed_outcome = renamed.step(action)
        same = (reward, outcome) == (renamed_reward, renamed_outcome)
        _require(same, "renaming changes nothing but names", f"{action!r} earns {renamed_reward:g} and not {reward:g}")
    if names:
        _require(changed, "a thing that is renamed is shown", f"neither {[*names][-1]!r} nor another is")
    return True


def _names_left(shown: Observation, names: Mapping[str, str]) -> str:
    """An old name, in any case and beside any sign, in what should have new ones; "" if there is none."""
    new = {name.lower() for name in names.values()}
    old = [re.escape(name) for name in names if name.lower() not in new]
    if not old:
        return ""
    pattern = re.compile(rf"(?<![^\W_])(?:{'|'.join(old)})(?![^\W_])", re.IGNORECASE)
    return next((found[0] for text in shown.texts if (found := pattern.search(text))), "")


class _BrokenError(Exception):
    """A promise that was not kept."""


@contextmanager
def _doing(what: str, trail: _Trail | None = None) -> Iterator[None]:
    """Any error that is not ours is the game's: report it with what was done last."""
    trail = trail or _Trail()
    try:
        yield
    except _BrokenError as broken:
        raise GameError(
            f"the game breaks its contract: {broken}{trail.words()}",
            hint="what it must do: docs/games.md, and grue.games.base.Game",
        ) from broken
    except GrueError:
        raise
    except (Exception, SystemExit) as error:
        place = place_of(error)
        where = f" ({place})" if place else ""
        raise GameError(
            f"the game breaks its contract: {what} raised {named(error)}{where}{trail.words()}",
            hint="GRUE_DEBUG=1 in front of the command shows the traceback",
        ) from cause_of(error)


def _difference(here: Observation, there: object) -> str:
    """Where two observations part, for a message; "" if not there."""
    for name in ("text", "goal", "inventory", "actions", "score"):
        one, other = getattr(here, name), getattr(there, name, None)
        if one != other:
            pairs = zip(str(one), str(other), strict=False)
            start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            cut = slice(max(0, start - 20), start + 40)
            return f"{name} differs: {str(one)[cut]!r} and {str(other)[cut]!r}"
    return ""


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _raises(call: Callable[[], object]) -> bool:
    try:
        call()
    except GrueError:
        return True
    except Exception as error:
        raise _BrokenError(f"a refused call raises GameError, not {type(error).__name__}: {error}") from error
    return False


def _require(kept: bool, promise: str, found: str = "") -> None:
    if not kept:
        raise _BrokenError(f"it must be that {promise}" + (f", but {found}" if found else ""))
