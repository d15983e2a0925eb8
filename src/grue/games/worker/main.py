"""The other end of `process`: a process that hosts games and answers JSON lines until its input closes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import asdict
from typing import Any

import orjson

from grue.errors import GrueError
from grue.games.worker.protocol import ERRORS
from grue.types import Observation, Task

# of an engine in Java whose Java has ended, between two calls or in one; by their names, as few workers have py4j
LOST_JAVA = ("Py4JNetworkError", "Py4JError")


def main() -> None:
    """Serve. The first argument is the number of the lifeline's file descriptor."""
    _die_with(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an engine prints must not mix with the answers
    games: dict[int, Any] = {}
    for line in sys.stdin.buffer:
        answers.write(orjson.dumps(_answer(games, orjson.loads(line))) + b"\n")
        answers.flush()


def _die_with(lifeline: int) -> None:
    """End this process group when the other end of `lifeline` closes, even if an engine is stuck in C code.

    The kernel sends SIGKILL by itself where it can (Linux); the thread does elsewhere, if it gets to run. The parent
    death signal of prctl(2) would not do: it fires when the *thread* that started this process ends.
    """
    try:
        import fcntl

        set_signal = 10  # F_SETSIG, which Python's fcntl does not name before 3.12
        if sys.platform == "linux":
            fcntl.fcntl(lifeline, set_signal, signal.SIGKILL)
            fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgid(0))
            fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError as error:
        print(f"cannot ask for a signal when the parent ends ({error}): a thread watches", file=sys.stderr)

    def watch() -> None:
        os.read(lifeline, 1)  # nothing is ever written: this returns when the other end is closed
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _answer(games: dict[int, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Do one request; errors become answers. `broken` means that the seat was in doubt and has been given up."""
    seat = request.get("seat", -1)
    try:
        for left in request.get("left", ()):
            if left in games:
                games.pop(left).close()
        return {"value": _do(games, seat, request)}
    except GrueError as error:
        kind = next((name for name, kind in ERRORS.items() if isinstance(error, kind)), "game")
        return {"error": kind, "message": error.message, "hint": error.hint, "broken": False}
    except Exception as error:
        if type(error).__name__ in LOST_JAVA:
            os._exit(1)  # no seat of this process can go on; a new process replays their episodes
        games.pop(seat, None)
        message = f"the engine failed: {type(error).__name__}: {error}"
        return {"error": "game", "message": message, "hint": "", "broken": True}


def _do(games: dict[int, Any], seat: int, request: dict[str, Any]) -> Any:
    call = request["call"]
    if call == "hello":
        return os.getpid()
    if call == "open":
        from grue.games.native import open_here

        games[seat] = open_here(request["game"], request["params"])
        return None
    game = games[seat]
    if call == "reset":
        return _plain(game.reset(Task(**request["task"])))
    if call == "step":
        observation, reward, outcome = game.step(request["action"])
        return [_plain(observation), reward, None if outcome is None else str(outcome)]
    if call == "rehearse":
        return game.rehearse(request["actions"])
    if call == "equivalent":
        return game.equivalent(request["action"], request["then"])
    assert call in ("gold", "plan", "advice"), call
    return getattr(game, call)()


def _plain(observation: Observation) -> dict[str, Any]:
    return asdict(observation)


if __name__ == "__main__":
    main()
