"""Make grue_tutorial.ipynb from its source: every cell is run, from top to bottom, and the outputs are kept.

    python tutorials/execute.py
    GRUE_TUTORIAL_FAST=1 python tutorials/execute.py --out trial.ipynb      # everything small

Needs the extra [notebooks]. A cell that fails ends with its traceback, and leaves the notebook as it was. Cells that
take a second or more are listed with their seconds: on the clock, and of processor time, games included.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import jupytext
import psutil
from nbclient import NotebookClient

HERE = Path(__file__).parent


class Timer:
    """Prints the seconds of each code cell while the notebook runs."""

    def __init__(self) -> None:
        self.client: NotebookClient | None = None
        self.start, self.cpu = 0.0, 0.0

    def begin(self, **_: Any) -> None:
        self.start, self.cpu = time.monotonic(), self.used()

    def end(self, cell: Any, cell_index: int, **_: Any) -> None:
        clock, cpu = time.monotonic() - self.start, self.used() - self.cpu
        if max(clock, cpu) >= 1:
            last = cell.source.strip().splitlines()[-1].strip()
            print(f"cell {cell_index:>3}: {clock:6.1f} s, {cpu:6.1f} s of processor time   ... {last[:60]}", flush=True)

    def used(self) -> float:
        """Processor seconds of the kernel and the processes it started, so far."""
        assert self.client is not None
        try:
            kernel = psutil.Process(self.client.km.provisioner.process.pid)
        except (AttributeError, psutil.NoSuchProcess):  # not started yet, or over
            return 0.0
        times = [process.cpu_times() for process in (kernel, *kernel.children(recursive=True))]
        return float(sum(t.user + t.system for t in times))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "grue_tutorial.ipynb")
    args = parser.parse_args()
    if os.environ.get("GRUE_TUTORIAL_FAST") == "1" and args.out == parser.get_default("out"):
        parser.error(
            "with GRUE_TUTORIAL_FAST set, --out names another file: the text quotes the full notebook's numbers"
        )
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = jupytext.read(HERE / "grue_tutorial.py")
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # random ids would make every new notebook differ everywhere
    timer = Timer()
    client = timer.client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=3600,
        startup_timeout=600,
        record_timing=False,
        resources={"metadata": {"path": str(HERE)}},
        on_cell_execute=timer.begin,
        on_cell_executed=timer.end,
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
