"""A seat at the TextWorldExpress engine that survives the death of its Java process.

The engine is deterministic: the same task and actions give the same texts. So when Java dies or hangs, it is
restarted and the episode is replayed from its seed and its actions. A call that timed out may or may not
have been executed, hence the old process is always discarded, never asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import finalize

import orjson

from grue.errors import ConfigError, GameError
from grue.games.base import place
from grue.games.twx.jvm import Jvm, JvmSettings, current_jvm, is_connection_error
from grue.types import Task

if TYPE_CHECKING:
    from grue.games.twx.gateway import Pending

RESTARTS = 3  # of Java within one call; a call that still fails after the last is given up
ENGINE_FOLDS = {"train": "train", "dev": "dev", "test": "test", "pretrain": "train"}

# The engine keeps one set of objects for each of its 100 sorting problems per fold, for the whole process:
# generating a problem takes its objects out of any other live game of that problem (seeds equal modulo 100).
SHARED_PROBLEMS = {"sorting": 100}

Answer = TypeVar("Answer")


class EngineSeat:
    """One engine interface. Not to be shared by two threads."""

    def __init__(self, settings: JvmSettings) -> None:
        self._settings = settings
        self._jvm: Jvm | None = None
        self._interface: Any = None
        self._retire: finalize[..., Any] | None = None  # gives the interface back, also when this is collected
        self._loaded: tuple[str, str] | None = None  # (game, params) that the interface holds
        self._task: Task | None = None
        self._actions: list[str] = []
        self._begun: tuple[str | Task, Pending] | None = None  # a step or start whose answer has not been read
        self._token = object()  # represents this seat in Jvm.owners

    @property
    def actions(self) -> tuple[str, ...]:
        """What has been done since the start of the task."""
        return tuple(self._actions)

    def begin_start(self, task: Task) -> None:
        """Have the engine start on the task's game and return at once; the next call must be `start` with that task.

        Where that is not possible nothing happens, and `start` does it all.
        """
        if self._loaded == (task.game, task.params) and task.game not in SHARED_PROBLEMS:
            self._begin(task, "generateNewGameJSON", *_generation(task))

    def start(self, task: Task, *, gold: bool = False) -> dict[str, Any]:
        """Generate the task's game; the engine's answer. `gold` also generates the gold path (5 times slower)."""
        begun = None if gold else self._take_begun(task)
        self._task, self._actions = None, []
        answer = self._do(begun, lambda jvm, interface: self._generate(jvm, interface, task, gold=gold), task)
        self._task = task
        return answer

    def begin_step(self, action: str) -> None:
        """Have the engine start on `action` and return at once; the next call must be `step` with the same action.

        Where that is not possible nothing happens, and `step` does it all.
        """
        if self._task is not None and self._task.game not in SHARED_PROBLEMS:
            self._begin(action, "stepJSON", action)

    def step(self, action: str) -> dict[str, Any]:
        """Do one action; the engine's answer."""
        answer = self._do(self._take_begun(action), lambda _, interface: str(interface.stepJSON(action)))
        self._actions.append(action)
        return answer

    def _begin(self, what: str | Task, method: str, *arguments: str | int) -> None:
        self._forget_begun()
        if self._jvm is None or self._jvm.abandoned:  # talking to the parent's Java would change the parent's game
            return
        try:
            self._begun = what, self._jvm.begin(self._interface, method, *arguments)
        except BaseException as error:  # the command may have arrived, so the state is in doubt
            self._drop_interface()
            if not is_connection_error(error):
                raise

    def _take_begun(self, what: str | Task) -> Pending | None:
        """The call that was begun for `what`; one that was begun for something else is forgotten."""
        if self._begun is None or self._begun[0] != what:
            self._forget_begun()
            return None
        (_, begun), self._begun = self._begun, None
        return begun

    def _do(self, begun: Pending | None, call: Callable[[Jvm, Any], str], task: Task | None = None) -> dict[str, Any]:
        """The answer to `call`, which is only made if it was not `begun` before."""
        here = self._interface

        def do(jvm: Jvm, interface: Any) -> dict[str, Any]:
            nonlocal begun
            waiting, begun = begun, None
            if waiting is not None and interface is here:
                return self._parse(waiting.finish())
            if waiting is not None:  # Java was restarted in between, and the new one has been told nothing yet
                waiting.drop()
            return self._parse(call(jvm, interface))

        return self.ask(do, task)

    def ask(self, question: Callable[[Jvm, Any], Answer], task: Task | None = None) -> Answer:
        """Ask the engine `question` in the current state; if Java fails, again after a restart and replay.

        `task` is the one that the question is about, if not the current one.
        """
        from py4j.protocol import Py4JJavaError

        self._forget_begun()
        last: BaseException | None = None
        dead: Jvm | None = None
        for _ in range(1 + RESTARTS):
            jvm = current_jvm(self._settings, dead, last)
            try:
                with _exclusive(jvm, task or self._task):
                    self._revive(jvm)
                    return question(jvm, self._interface)
            except Py4JJavaError as error:
                self._drop_interface()
                raise GameError(f"the game engine failed at {self._where()}: {error.java_exception}") from error
            except GameError:
                raise
            except BaseException as error:  # Ctrl-C too: the step may have been done, so the state is in doubt
                self._drop_interface()
                if not is_connection_error(error):
                    raise
                last, dead = error, jvm
        raise GameError(
            f"Java died or hung {1 + RESTARTS} times in a row at {self._where()}: {last}",
            hint="set a longer game.read_timeout_s, or another Java with game.java: `grue doctor` lists them",
        ) from last

    def close(self) -> None:
        """Forget the task and give the interface back. The Java process stays for other seats."""
        self._forget_begun()
        self._task = None
        self._drop_interface()

    def _forget_begun(self) -> None:
        """Drop a step that was begun and is no longer wanted, and with it the interface, whose state is in doubt."""
        if self._begun is not None:
            self._begun[1].drop()
            self._begun = None
            self._drop_interface()

    def _drop_interface(self) -> None:
        if self._retire is not None:
            self._retire()
        self._jvm = self._interface = self._retire = self._loaded = None

    def _revive(self, jvm: Jvm) -> None:
        """Make the interface live in `jvm`, in the state that the episode had reached."""
        if self._interface is None or self._jvm is not jvm:
            self._drop_interface()
            self._jvm, self._interface = jvm, jvm.interface()
            self._retire = finalize(self, jvm.retire, self._interface)
            self._retire.atexit = False
        elif self._task is None or jvm.owners.get(_problem(self._task), self._token) is self._token:
            return
        if self._task is not None:
            self._generate(jvm, self._interface, self._task, gold=False)
            for action in self._actions:
                self._interface.stepJSON(action)

    def _generate(self, jvm: Jvm, interface: Any, task: Task, *, gold: bool) -> str:
        """Have the engine make the task's game on `interface`; its answer."""
        if self._loaded != (task.game, task.params):
            problem = interface.load(task.game, task.params)
            if problem:
                raise ConfigError(f"{task.game} does not take the parameters {task.params!r}: {problem}")
            self._loaded = (task.game, task.params)
        if task.game in SHARED_PROBLEMS:
            jvm.owners[_problem(task)] = self._token
        return str(interface.generateNewGameJSON(*_generation(task, gold=gold)))

    def _parse(self, text: str) -> dict[str, Any]:
        answer: dict[str, Any] = orjson.loads(text)
        if answer["observation"].startswith("ERROR:"):
            self._loaded = None  # the engine keeps an error until the game is loaded again
            raise GameError(f"the game engine reports at {self._where()}: {answer['observation']}")
        return answer

    def _where(self) -> str:
        return place(self._task, len(self._actions))


def _generation(task: Task, *, gold: bool = False) -> tuple[int, str, bool]:
    """What determines the game that the engine makes: seed, fold, whether with its gold path."""
    return task.seed, ENGINE_FOLDS[task.fold], gold


def _problem(task: Task) -> tuple[str, str, int]:
    """Identifies the objects that a task of a family in SHARED_PROBLEMS uses; other tasks share none."""
    return (task.game, ENGINE_FOLDS[task.fold], task.seed % SHARED_PROBLEMS.get(task.game, 1 << 31))


def _exclusive(jvm: Jvm, task: Task | None) -> AbstractContextManager[object]:
    """Keeps other threads from taking shared objects between a replay and the call that follows it."""
    return jvm.lock if task is not None and task.game in SHARED_PROBLEMS else nullcontext()
