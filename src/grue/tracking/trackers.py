"""The trackers that can be written to. Each has a library of its own, imported when it is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

Settings = Mapping[str, Any]


class Tracker(Protocol):
    """An open run of a tracker."""

    def log(self, section: str, step: int, values: Mapping[str, float]) -> None:
        """Values of one step of a section (a stage, or `eval`); each section counts its own steps, upwards."""

    def close(self) -> None:
        """Send what has not been sent. May take as long as the network does."""


class TensorBoard:
    """Event files below the run's own folder: `tensorboard --logdir runs`."""

    def __init__(self, out: Path, name: str, settings: Settings) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(out / "tensorboard" / name))
        table = "\n".join(f"| {key} | {value} |" for key, value in settings.items())
        self._writer.add_text("settings", f"| setting | value |\n| --- | --- |\n{table}")

    def log(self, section: str, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(f"{section}/{key}", value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Trackio:
    """Trackio's own folder on this machine, or the server or Space that environment variables name: `trackio show`."""

    def __init__(self, out: Path, name: str, settings: Settings) -> None:
        import trackio

        self._module = trackio
        project = os.environ.get("TRACKIO_PROJECT") or "grue"
        trackio.init(project, name=name, config=dict(settings), resume="allow", embed=False)

    def log(self, section: str, step: int, values: Mapping[str, float]) -> None:
        self._module.log({f"{section}/{key}": value for key, value in values.items()}, step=step)

    def close(self) -> None:
        self._module.finish()


class WeightsAndBiases:
    """The account of `wandb login`; with WANDB_MODE=offline a folder in the run directory, for `wandb sync`."""

    def __init__(self, out: Path, name: str, settings: Settings) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT") or "grue"
        self._run = wandb.init(
            project=project,
            id=re.sub(r"[^\w.-]", "-", name),
            name=name,
            dir=str(out),
            config=dict(settings),
            resume="allow",
            job_type="train",
        )
        self._sections: set[str] = set()

    def log(self, section: str, step: int, values: Mapping[str, float]) -> None:
        if section not in self._sections:  # its own counter of steps only goes up, and ours begins again in each stage
            self._sections.add(section)
            self._run.define_metric(f"{section}/step")
            self._run.define_metric(f"{section}/*", step_metric=f"{section}/step")
        self._run.log({f"{section}/step": step, **{f"{section}/{key}": value for key, value in values.items()}})

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[Path, str, Settings], Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WeightsAndBiases,
}
