"""Every benchmark in turn, one JSON object a line: `python benchmarks/run.py [NAME ...] [KEY=VALUE ...]`.

The same as `grue bench NAME --json`, but takes settings, such as model.name=FOLDER or threads=1.
"""

from __future__ import annotations

import json
import sys

from grue import bench


def main(arguments: list[str]) -> None:
    settings = [argument for argument in arguments if "=" in argument]
    names = [argument for argument in arguments if "=" not in argument] or list(bench.NAMES)
    for name in names:
        print(json.dumps(bench.main(name, settings, say=lambda text: print(text, file=sys.stderr))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
