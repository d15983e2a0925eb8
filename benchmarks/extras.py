"""What each extra adds to an installation: packages, megabytes and seconds, each alone on top of the core.

    python benchmarks/extras.py [qlora trl ...] [folder=/tmp] [core=/an/environment]

Makes a fresh environment with the core (torch and grue, as `make demo` does), copies it for each extra, installs the
requirements of the extra there with `-c constraints.txt`, and deletes the copy. Prints a line of JSON for the core
(unless `core` names an environment that has it) and one for each extra: `packages` and `mb` (sum of the sizes of files
in site-packages) are what was added, `seconds` the wall time of `pip install` and `cpu_seconds` what it and its
compilers computed. pip's cache is left as it is: what is in it is not downloaded or compiled again, so a second
run is faster than the first. Needs the network, and room for two environments.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import tomllib
import venv
from pathlib import Path

from arguments import read_arguments

ROOT = Path(__file__).resolve().parents[1]
TORCH = os.environ.get("TORCH", "torch==2.13.0")  # the Makefile's setting


def site_packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python*/site-packages")
    return found


def size(environment: Path) -> tuple[int, float]:
    """(installed packages, megabytes of files)."""
    folder = site_packages(environment)
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return len(list(folder.glob("*.dist-info"))), sum(path.stat().st_size for path in files) / 1e6


def install(environment: Path, *what: str) -> tuple[float, float]:
    """(wall time, processor time) of `pip install` in seconds.

    A copied environment is used through its python, never through the scripts beside it, which name the original.
    """
    command = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    start, before = time.perf_counter(), os.times()
    subprocess.run([*command, "-c", "constraints.txt", *what], cwd=ROOT, check=True)
    after = os.times()
    computed = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, computed


def row(name: str, before: tuple[int, float], after: tuple[int, float], took: tuple[float, float]) -> None:
    added = {"packages": after[0] - before[0], "mb": round(after[1] - before[1], 1)}
    times = {"seconds": round(took[0], 1), "cpu_seconds": round(took[1], 1)}
    print(json.dumps({"extra": name, **added, **times}), flush=True)


def fresh(environment: Path) -> Path:
    """A new environment with the core."""
    venv.create(environment, with_pip=True)
    bare = size(environment)
    torch, rest = install(environment, TORCH), install(environment, "-e", ".")
    row("core", bare, size(environment), (torch[0] + rest[0], torch[1] + rest[1]))
    return environment


def main() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named, settings = read_arguments(__doc__, {"folder": "", "core": ""}, names=extras)
    with tempfile.TemporaryDirectory(prefix="grue-extras-", dir=settings["folder"] or None) as temporary:
        copy = Path(temporary) / "copy"
        core = Path(settings["core"]) if settings["core"] else fresh(Path(temporary) / "core")
        before = size(core)
        for name in named or [extra for extra in extras if extra != "dev"]:
            shutil.copytree(core, copy, symlinks=True)
            took = install(copy, *extras[name])
            row(name, before, size(copy), took)
            shutil.rmtree(copy)


if __name__ == "__main__":
    main()
