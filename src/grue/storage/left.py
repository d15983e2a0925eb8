"""What a stage leaves in a run directory, and deleting it when the stage starts over."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from grue.names import DEV_ROWS, TRAINING
from grue.storage import jsonl
from grue.storage.contents import REPORT, checkpoints_folder, episodes_file, keep_evaluation, keep_metrics
from grue.storage.files import explained

_ALSO_LEFT = {
    "demos": ("episodes/replays.jsonl", "games.json"),
    "sft": ("episodes/shown.jsonl", "episodes/probe-base.jsonl", "prompt.json"),
    "eval": ("results.json", REPORT),
}


def delete_left(out: Path, over: Collection[str]) -> None:
    """Delete what the stages `over` have left: rows, checkpoints, episodes, and the table made of them.

    Their entries in stages.json stay. May be called again after an interruption.
    """
    rows = {*over, *(DEV_ROWS[name] for name in over if name in DEV_ROWS)}
    keep_metrics(out, lambda row: row["stage"] not in rows)
    keep_evaluation(out, lambda row: "api" in row and "demos" not in over)  # answers of chat models were paid for
    jsonl.keep(episodes_file(out, "shown"), lambda row: row.get("policy") not in over)
    with explained(f"delete what stages have left in {out}"):
        for name in over:
            if checkpoints_folder(out, name).exists():
                shutil.rmtree(checkpoints_folder(out, name))
            patterns = (f"episodes/{name}.jsonl", f"episodes/{name}-*.jsonl", f"episodes/probe-{name}.jsonl")
            for pattern in (*patterns, *_ALSO_LEFT.get(name, ())):
                for file in out.glob(pattern):
                    file.unlink()
        if {*over} & {*TRAINING}:  # other steps with the same numbers will follow, in a new run of a tracker
            for file in out.glob("tracking/*.json"):
                file.unlink()
