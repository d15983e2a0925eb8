"""A run directory: a run's settings, what it has done, and what came out.

    config.yaml     every setting            metrics.jsonl   one row per logged step
    stages.json     which stages are done    episodes/       games played, JSONL
    checkpoints/    one folder per stage     results.json    the final table, atomic; report.html beside it
    prompt.json     hash of the prompt format, chat template included
    settings.json   the settings when a stage last began; config.yaml may be edited since

`Run` is for the one process that writes; code that only reads uses `contents`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from grue.config import Config, dump_config, read_config
from grue.errors import ConfigError, DataError, GrueError
from grue.names import DEV_ROWS, RUN_FOLDS, STAGES, TRAINING
from grue.storage import jsonl
from grue.storage.contents import (
    REPORT,
    checkpoints_folder,
    episodes_file,
    keep_evaluation,
    keep_metrics,
    read_evaluation,
    read_json,
    read_metrics,
    read_stages,
)
from grue.storage.files import explained, lock_folder, remove_leftovers, sync_file, write_atomic
from grue.storage.left import delete_left
from grue.storage.settled import SETTINGS, adopted, check_settled, used_settings

if TYPE_CHECKING:
    from torch import Tensor

    from grue.storage.checkpoint import Checkpoint

DELETING = "deleting"  # state of a stage while --again deletes what it left


class Run:
    """A run directory, created or reopened, and locked against other commands.

    Of several processes of one run only the leader writes; the others (leads=False) read what is there.

    A setting may change between two commands until the stage that it belongs to, or a later one, has begun; those of
    game, model, policy and seed until any stage has; those of the machine (threads, java) always. `again` names a stage
    that starts over together with all later ones: what they left is deleted only when it begins, as until then it may
    turn out that it cannot.
    """

    def __init__(self, out: Path, config: Config, *, again: str = "", leads: bool = True) -> None:
        self.out = out
        self.leads = leads
        self.config = config
        self.config_file = out / "config.yaml"
        self.metrics_file = out / "metrics.jsonl"
        self.evaluation_file = out / "evaluation.jsonl"
        self.results_file = out / "results.json"
        self._stages_file = out / "stages.json"
        self._prompt_file = out / "prompt.json"
        self._games_file = out / "games.json"
        self.lost: tuple[str, ...] = ()  # stages that start over: `begin` deletes what they have left
        self.adopted = ""  # which settings this command has changed
        self._prompt: str | None = None  # hash of the prompt format, once a model has been loaded
        self._clocks: dict[str, float] = {}  # stage -> when it would have begun, had it run without a break
        self.resumed = self.config_file.exists()
        self._over: tuple[str, ...] = STAGES[STAGES.index(again) :] if again and self.resumed else ()  # to be deleted
        if any("\ud800" <= letter <= "\udfff" for letter in str(out)):  # tensors are saved under names in UTF-8
            raise ConfigError(f"{str(out)!r} is not valid UTF-8", hint="choose another --out")
        nowhere = "" if self.resumed else "choose a place that can be written to, with --out"
        with explained(f"open the run directory {out}", ConfigError, missing=nowhere):
            if not leads:
                self._read_stages()
                return
            if not self.resumed and out.is_dir() and any(not _of_ours(path) for path in out.iterdir()):
                raise ConfigError(
                    f"{out} holds other files, but no run", hint="choose a new or empty folder with --out"
                )
            lock_folder(out)
            for folder in (out, out / "episodes"):
                remove_leftovers(folder)
        if not self._read_stages() and self.resumed and any((out / "checkpoints").glob("*/*")):
            raise DataError(
                f"{self._stages_file} is missing, which says how far the run has come",
                hint="restore it, or start over in another folder with --out",
            )
        self._before = self.config
        if self.resumed:
            self._before = read_config(self.config_file)
            check_settled(out, self._before, config, self._stages)
            self.adopted = adopted(self._before, config)
        if not self._over:
            self._write_config(self.config)

    def _read_stages(self) -> bool:
        """Read how far the run has come, and what of it starts over. False if nothing has begun."""
        stored = self._with_unfinished(read_stages(self.out))
        self._stages = self._kept(stored)
        self.lost = tuple(name for name in self._over if name in stored)
        return bool(stored)

    @contextmanager
    def changed_unless_refused(self) -> Iterator[None]:
        """An error within restores the settings from before this command, if no stage has begun since."""
        try:
            yield
        except GrueError:
            if self.leads and not self._over:
                self._write_config(self._before)
            raise

    def begin(self, stage: str) -> None:
        """Mark a stage as begun: from here on its settings are fixed, and its time runs."""
        if self._over and self.leads:
            self._delete(self._over)
            self._write_config(self.config)
        if self._prompt is not None and "sft" in self._over:
            self._write_prompt(self._prompt)
        self._over = self.lost = ()
        self._before = self.config
        if stage in TRAINING:
            self._forget_evaluation(stage)
        logged = self._start_clock(stage)
        # a command that was killed has logged rows, and has not counted its time
        seconds = max(self.seconds(stage), round(logged, 2))
        spent = {"seconds": seconds} if seconds else {}
        self._write(self.out / SETTINGS, _pretty(used_settings(self.config)))
        self._mark(stage, {**spent, "state": "begun"})

    def done(self, stage: str, **facts: Any) -> None:
        """Mark a stage as done, with facts about it that `facts` returns."""
        self._mark(stage, {"seconds": self.seconds(stage), **facts, "state": "done"})

    def is_broken_off(self, stage: str) -> bool:
        """Has the stage begun, but not been finished?"""
        return bool(self._stages.get(stage, {}).get("state") == "begun")

    def is_done(self, stage: str) -> bool:
        """Has the stage been finished, in this or an earlier command?"""
        return bool(self._stages.get(stage, {}).get("state") == "done")

    def facts(self, stage: str) -> dict[str, Any]:
        """What `done` was told about a stage, and the seconds spent in it so far; empty if it has not begun."""
        return {key: value for key, value in self._stages.get(stage, {}).items() if key != "state"}

    def seconds(self, stage: str) -> float:
        """Seconds that all commands so far have spent in a stage."""
        return float(self._stages.get(stage, {}).get("seconds", 0.0))

    def add_seconds(self, stage: str, seconds: float) -> None:
        """Count `seconds` more of a stage that has begun."""
        self._mark(stage, {**self._stages[stage], "seconds": round(self.seconds(stage) + seconds, 2)})

    def checkpoints(self, stage: str) -> Path:
        """Folder of a stage's checkpoints."""
        return checkpoints_folder(self.out, stage)

    def episodes(self, name: str) -> Path:
        """JSONL file of the episodes called `name`."""
        return episodes_file(self.out, name)

    def save(
        self,
        stage: str,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        *,
        keep: int = 2,
        best: bool = False,
    ) -> None:
        """Write a checkpoint of a stage; see `storage.checkpoint`."""
        if self.leads:
            from grue.storage import checkpoint  # needs torch, which code that only reads a run does not

            folder, prompt = self.checkpoints(stage), self._prompt
            if self.metrics_file.exists():
                sync_file(self.metrics_file)  # a power cut must not leave weights whose rows are lost
            checkpoint.save(folder, step, tensors, state, keep=keep, best=best, prompt=prompt)

    def load(self, path: Path) -> Checkpoint:
        """Read a checkpoint. CheckpointError if it is damaged, or was trained with another prompt format."""
        from grue.storage import checkpoint

        return checkpoint.load(path, prompt=self._prompt)

    def log(self, stage: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Append a row to metrics.jsonl: `metrics`, and the seconds that all commands together spent on the stage.

        Numbers that are not finite become null.
        """
        if not self.leads:
            return
        if taken := {"stage", "step", "time_s"} & set(metrics):
            raise ConfigError(f"{', '.join(sorted(taken))} of a row are set here", hint="give the metric another name")
        if stage not in self._clocks:
            self._start_clock(stage)
        time_s = round(time.monotonic() - self._clocks[stage], 3)
        jsonl.append(self.metrics_file, [{"stage": stage, "step": step, "time_s": time_s, **metrics}])

    def rewind(self, stage: str, step: int) -> None:
        """Drop the rows of a stage beyond `step`: they were logged after the checkpoint that was restored."""
        if not self.leads:
            return
        keep_metrics(self.out, lambda row: bool(row["stage"] != stage or row["step"] <= step))
        self._start_clock(stage)

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Replace results.json."""
        self._write(self.results_file, _pretty(results))

    def keep_prompt(self, fingerprint: str) -> None:
        """Record the prompt format, for checkpoints too. ConfigError if it is not the one that the run began with."""
        self._prompt = fingerprint
        if "sft" in self._over:  # what was trained with another format is deleted when that begins
            return
        from grue.storage import checkpoint

        stored = read_json(self._prompt_file)
        if stored is None:
            for stage in STAGES:  # weights trained with another format are refused before this one is written down
                checkpoint.check_newest(self.checkpoints(stage), fingerprint)
            self._write_prompt(fingerprint)
        elif change := checkpoint.prompt_change(str(stored.get("sha256")), fingerprint):
            raise ConfigError(
                f"the prompt format is not the one that {self.out} began with: {change}",
                hint="set model.revision to the commit that the run began with, put the tokenizer's files in a folder "
                "back as they were, or train again (an older grue may have made other prompts for this model): "
                f"grue sft {self.out} --again",
            )

    def keep_games(self, fingerprints: Mapping[str, str]) -> None:
        """Record which games of the user's own each fold has. ConfigError if the run began with others.

        All folds at once: train leaves out what the later ones hold.
        """
        if "demos" in self._over:  # what was played on others is deleted when that begins
            return
        stored = read_json(self._games_file)
        if stored is None:
            if self.leads:
                self._write(self._games_file, _pretty(dict(fingerprints)))
        elif changed := [fold for fold in RUN_FOLDS if stored.get(fold) != fingerprints.get(fold)]:
            raise ConfigError(
                f"the {' and '.join(changed)} games are not those that {self.out} began with: files were added, taken "
                "away, renamed or replaced",
                hint=f"put them back as they were, begin another run (--out NAME), or begin this one again: grue demos "
                f"{self.out} --again",
            )

    def _write_prompt(self, fingerprint: str) -> None:
        self._write(self._prompt_file, _pretty({"sha256": fingerprint}))

    def _with_unfinished(self, stored: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """`stored`, after noting stages whose deletion was interrupted and has to be finished."""
        first = next((name for name in STAGES if stored.get(name, {}).get("state") == DELETING), None)
        if first is not None:
            self._over = max(self._over, STAGES[STAGES.index(first) :], key=len)
        return stored

    def _kept(self, stages: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {name: entry for name, entry in stages.items() if name not in self._over}

    def _write_config(self, config: Config) -> None:
        self._write(self.config_file, dump_config(config).encode())

    def _start_clock(self, stage: str) -> float:
        """Go on with the clock of a stage's rows. Returns the seconds up to its last row."""
        measures = next((name for name, rows in DEV_ROWS.items() if rows == stage), stage)  # one clock for both
        spent = max((row["time_s"] for row in read_metrics(self.out, measures)), default=0.0)
        self._clocks[stage] = time.monotonic() - spent
        return spent

    def _mark(self, stage: str, entry: dict[str, Any]) -> None:
        if stage not in STAGES:
            raise ConfigError(f"a run has no stage {stage!r}", hint=f"its stages are {', '.join(STAGES)}")
        self._stages[stage] = entry
        self._write(self._stages_file, _pretty(self._stages))

    def _delete(self, over: Collection[str]) -> None:
        """Delete what stages have left: rows, checkpoints, episodes, and the table made of them."""
        # first what must be read, as it may turn out to be damaged
        read_metrics(self.out), read_evaluation(self.out)
        doomed = {name: {"state": DELETING} for name in over if name in read_stages(self.out)}
        try:  # after a kill, the next command must know that what is there is incomplete
            self._write(self._stages_file, _pretty(self._stages | doomed))
        except DataError as error:
            raise DataError(error.message, hint=error.hint.replace(" (without --again)", "")) from error
        delete_left(self.out, over)
        # last: a stage whose entry is gone while its files are there would go on from them
        self._write(self._stages_file, _pretty(self._stages))

    def _forget_evaluation(self, stage: str) -> None:
        """Drop what was measured on weights of this stage, or of later ones, as they are about to change."""
        policies = tuple(f"eval-{name}-" for name in STAGES[STAGES.index(stage) :])
        if self.leads:
            keep_evaluation(self.out, lambda row: not row["row"].startswith(policies))
            for file in (self.results_file, self.out / REPORT):  # report and model card would show old numbers
                with explained(f"delete {file}"):
                    file.unlink(missing_ok=True)
        if self.is_done("eval"):
            self._mark("eval", {"seconds": self.seconds("eval"), "state": "begun"})

    def _write(self, file: Path, data: bytes) -> None:
        if not self.leads:
            return
        with explained(f"write {file}"):
            write_atomic(file, data)


def _pretty(data: Mapping[str, Any]) -> bytes:
    return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


def _of_ours(path: Path) -> bool:
    """Is this what a run left that was killed before it wrote its first file?"""
    return path.name == ".lock" or fnmatch(path.name, ".*.tmp")
