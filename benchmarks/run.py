"""Every benchmark in turn, one JSON object per line: `python benchmarks/run.py [NAME ...] [KEY=VALUE ...]`.

The same as `grue bench NAME --json`, but takes settings, such as model.name=FOLDER or threads=1, and sizes of the
benchmark, such as slots=256. `--random 1536x22` plays with random weights in the shape of 22 Llama layers 1536 wide
(0.6 B): what a real model of that size costs, without one. In `896x24x2` the 14 heads of 64 share 2 sets of keys and
values, as in Qwen2.5-0.5B; with `--recurrent` three of four layers keep a state, as in Qwen3.5.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from grue import bench
from grue.bench.random_model import make_model
from grue.config import load_config
from grue.errors import GrueError


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("arguments", nargs="*", metavar="NAME | KEY=VALUE")
    parser.add_argument(
        "--random", metavar="WIDTHxLAYERS[xKEY_HEADS]", help="random weights instead of the embedded base"
    )
    parser.add_argument("--recurrent", action="store_true", help="with --random: a model with recurrent layers")
    given = parser.parse_intermixed_args()
    pairs = [argument for argument in given.arguments if "=" in argument]
    names = [argument for argument in given.arguments if "=" not in argument] or list(bench.NAMES)
    with ExitStack() as stack:
        if given.random:
            try:
                width, layers, *shared = map(int, given.random.split("x"))
                (key_heads,) = shared or [None]
            except ValueError:
                parser.error(f"--random {given.random}: WIDTHxLAYERS or WIDTHxLAYERSxKEY_HEADS, such as 1536x22")
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model"
            kind, made = "Qwen3.5" if given.recurrent else "Llama", load_config("cooking16", [])
            print(f"making {layers} {kind} layers, {width} wide", file=sys.stderr)
            pairs.append(f"model.name={make_model(folder, made, width, layers, key_heads, recurrent=given.recurrent)}")
        known = {name: inspect.signature(bench.run_of(name)).parameters for name in names}
        settings = [pair for pair in pairs if not any(pair.partition("=")[0] in sizes for sizes in known.values())]
        for name in names:
            sizes = {key: int(value) for key, _, value in (pair.partition("=") for pair in pairs) if key in known[name]}
            found = bench.main(name, settings, say=lambda text: print(text, file=sys.stderr), **sizes)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    try:
        main()
    except GrueError as error:
        sys.exit(f"error: {error}")
