"""One Java process per Python process: started when first needed, restarted when it dies or hangs.

Safety: the gateway listens on the loopback interface only and asks for a token; Java never calls back into
Python; the heap is capped; the Java process ends by itself when Python's end of its input pipe closes, so
even `kill -9` leaves no orphan. A forked child gets a Java process of its own.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from grue.errors import GameError
from grue.games.java import ENGLISH, find_java, java_environment
from grue.games.restarts import note_restart

if TYPE_CHECKING:
    from grue.games.twx.gateway import Pending

_JAR = "textworld-express.jar"
_START_TIMEOUT = 60.0  # seconds; a start takes 0.2 on an idle machine


@dataclass(frozen=True, slots=True)
class JvmSettings:
    """What a Java process is started with; equal settings share one process."""

    java: str | None = None  # path of the executable; None: search
    read_timeout_s: float = 20.0  # for one call; then the process counts as hung
    heap: str = "256m"


class Jvm:
    """A running Java process with a connection to it."""

    def __init__(self, settings: JvmSettings) -> None:
        from grue.games.twx.gateway import Gateway

        self.lock = threading.RLock()  # held around games whose objects the engine shares (see seat.py)
        self.owners: dict[tuple[str, str, int], object] = {}  # shared problem -> the seat that generated it last
        self._retired: list[Any] = []
        self.abandoned = False
        self._process, self.port, self.token = _launch(settings)
        self._gateway = Gateway(self.port, self.token, settings.read_timeout_s)

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def interface(self) -> Any:
        """A new TextWorldExpress PythonInterface, to be used by one thread at a time."""
        while self._retired:
            self.release(self._retired.pop())
        try:
            return self._gateway.jvm.textworldexpress.runtime.PythonInterface()
        except TypeError as error:  # py4j takes a missing class for a package
            jar = engine_folder() / _JAR
            raise GameError(
                f"Java finds no game engine in {jar}", hint="install it in a folder whose path has only ASCII letters"
            ) from error

    def retire(self, interface: Any) -> None:
        """Have Java forget an interface when the next one is made. Does no I/O, as a finalizer may call it."""
        self._retired.append(interface)

    def begin(self, interface: Any, method: str, *arguments: str | int) -> Pending:
        """Start a call of an interface's method; its answer is to be fetched later."""
        return self._gateway.begin(interface, method, *arguments)

    def join(self, java_list: Any) -> list[str]:
        """A Java list of one-line strings as a Python list, in one call; the Java list is released."""
        text = str(self._gateway.jvm.java.lang.String.join("\n", java_list))
        self.release(java_list)
        return text.split("\n") if text else []

    def solve(self, interface: Any, solver: str, seed: int) -> list[str]:
        """What the engine's class `solver` does on the interface's live game, which it plays; [] where it gets lost."""
        jvm = self._gateway.jvm
        held = [game := interface.game(), dice := jvm.scala.util.Random(seed)]
        try:
            held.append(agent := getattr(jvm.textworldexpress.goldagent, solver)(game))
            held.append(solution := agent.mkGoldPath(dice))
            if not solution._1():
                return []
            held.append(actions := solution._2())
            return [str(action) for action in actions]
        finally:
            for java_object in held:
                self.release(java_object)

    def release(self, java_object: Any) -> None:
        """Let Java forget an object. A dead process has forgotten it already."""
        with suppress(Exception):
            self._gateway.detach(java_object)

    def kill(self) -> None:
        """End the process at once. It holds nothing that is worth saving."""
        _end(self._process)
        with suppress(Exception):
            self._gateway.close()

    def abandon(self) -> None:
        """For a forked child: let go of the parent's Java without touching it."""
        self.abandoned = True
        _close_input(self._process)
        self._gateway.abandon()


def _launch(settings: JvmSettings) -> tuple[subprocess.Popen[bytes], int, str]:
    """Start Java with a py4j gateway: (process, port, token). GameError when it does not come up."""
    from py4j.java_gateway import find_jar_path

    package, java = engine_folder(), find_java(settings.java)
    command = [java, "-classpath", os.pathsep.join((find_jar_path(), str(package / _JAR)))]
    command += [f"-Xmx{settings.heap}", "-XX:+UseSerialGC", *ENGLISH, "py4j.GatewayServer"]
    command += ["--die-on-broken-pipe", "--enable-auth", "0"]
    with TemporaryFile() as complaints:
        process = subprocess.Popen(
            command,
            cwd=package,  # the engine reads its word lists by relative path
            stdin=subprocess.PIPE,  # Java ends when the other end of this pipe is closed
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=java_environment(),
            start_new_session=True,  # Ctrl-C is for this process, which stops at a safe point
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
        )
        assert process.stdout is not None
        alarm = threading.Timer(_START_TIMEOUT, process.kill)
        alarm.start()
        with process.stdout as said:  # port and token; what the engine prints later is of no use
            lines = [said.readline().decode().strip() for _ in range(2)]
        alarm.cancel()
        if lines[0].isdigit() and lines[1]:
            return process, int(lines[0]), lines[1]
        _end(process)
        complaints.seek(0)
        reason = complaints.read().decode("utf-8", "replace").strip().split("\n")[0] or "it printed nothing"
    raise GameError(f"Java at {java} did not start the game engine: {reason}", hint=f"try: {' '.join(command[:5])}")


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError, subprocess.TimeoutExpired):
        process.kill()
        process.wait(timeout=5)
    _close_input(process)


def _close_input(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()


_running: dict[JvmSettings, Jvm] = {}
_lock = threading.RLock()


def current_jvm(settings: JvmSettings, dead: Jvm | None = None, reason: object = "") -> Jvm:
    """This process's Java for `settings`, started if needed.

    `dead` is a Jvm that the caller found dead or hung, for `reason`: if it is still the current one it is killed and
    replaced; if another thread has replaced it already, the replacement is returned.
    """
    with _lock:
        jvm = _running.get(settings)
        if jvm is not None and jvm is dead:
            note_restart("Java", reason)
            jvm.kill()
            jvm = None
        if jvm is None:
            jvm = _running[settings] = Jvm(settings)
        return jvm


def shutdown() -> None:
    """End every Java process of this Python process. Games that are still open restart it when stepped."""
    with _lock:
        while _running:
            _running.popitem()[1].kill()


def is_connection_error(error: BaseException) -> bool:
    """True when the Java process is dead or hung; False when Java answered with an exception of its own."""
    from py4j.protocol import Py4JError, Py4JJavaError

    if isinstance(error, Py4JJavaError):
        return False
    return isinstance(error, Py4JError | OSError)


def engine_folder() -> Path:
    """Where the engine's JAR and word lists are installed."""
    from importlib.util import find_spec

    spec = find_spec("textworld_express")
    if spec is None or spec.origin is None:
        raise GameError("TextWorldExpress is not installed", hint="pip install textworld-express==1.1.0")
    folder = Path(spec.origin).parent
    if not (folder / _JAR).is_file():  # for example a script of that name beside the one that runs
        where = f"textworld_express is found at {spec.origin}, without {_JAR}"
        raise GameError(where, hint="give that file another name")
    return folder


def _forget_in_child() -> None:
    """A forked child must not hold the parent's pipe open, nor talk on the parent's sockets."""
    global _lock
    _lock = threading.RLock()
    for jvm in _running.values():
        jvm.abandon()
    _running.clear()


atexit.register(shutdown)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
