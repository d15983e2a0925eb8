"""Make grue_tutorial.ipynb from its source: every cell is run, from top to bottom, and the outputs are kept.

    python tutorials/execute.py                          # GRUE_TUTORIAL_FAST=1 in front makes everything small
    python tutorials/execute.py --out /tmp/trial.ipynb

Needs the extra [notebooks]. A cell that fails ends with its traceback, and leaves the notebook as it was.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import jupytext
from nbclient import NotebookClient

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "grue_tutorial.ipynb")
    args = parser.parse_args()
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = jupytext.read(HERE / "grue_tutorial.py")
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # random ids would make every new notebook differ everywhere
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=3600,
        startup_timeout=600,
        record_timing=False,
        resources={"metadata": {"path": str(HERE)}},
    )
    start = time.monotonic()
    client.execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":  # warnings name the files that gave them
                output.text = output.text.replace(sys.prefix, ".venv")
    for cell in notebook.cells:
        if cell.cell_type == "code":  # warnings of libraries tell of this machine, not of the tutorial
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    jupytext.write(notebook, args.out)
    print(f"{args.out}: {(time.monotonic() - start) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
