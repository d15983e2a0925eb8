"""What a run says before it begins, or goes on."""

from __future__ import annotations

from pathlib import Path

from grue.config import Config, ModelConfig
from grue.hardware import gpus, memory_gib, physical_cores
from grue.models.sources import EMBEDDED
from grue.names import RUN_FOLDS
from grue.parallel import Processes
from grue.progress import Progress
from grue.stages.final import side_games
from grue.storage.run import Run

# measured with the embedded base: docs/models.md, "Several processes"
LEAST_PROCESSES, MOST_PROCESSES = 4, 8
GIB_EACH = 2.0


def plan(config: Config, out: Path) -> str:
    """What is about to happen, in a few lines."""
    decodings = " and ".join(config.eval.decodings)
    dagger = _times(config.dagger.rounds, "round", f"of {config.dagger.games_per_round} train games")
    ppo = _times(config.ppo.iterations, "iteration", f"of {config.ppo.episodes_per_iteration} train games")
    sides = [fold for fold in RUN_FOLDS if fold != config.eval.fold and side_games(config.eval)]
    beside = f"; {side_games(config.eval)} of {' and '.join(sides)}" if sides else ""
    demos = f"{config.demos.games} train games played by {config.demos.teacher}" if config.demos.games else "skipped"
    corrections = [f"  dagger {dagger}, corrected by {config.dagger.teacher}"] if config.dagger.rounds else []
    return "\n".join(
        [
            described(config),
            f"  demos  {demos}",
            f"  sft    {_times(config.sft.epochs, 'epoch')}",
            *corrections,
            f"  ppo    {ppo}",
            f"  eval   {config.eval.games} {config.eval.fold} games for each policy, {decodings}{beside}",
            f"  into   {out}; Ctrl-C saves, and the same command goes on",
        ]
    )


def tell_adopted(run: Run, say: Progress) -> None:
    """Whoever mistypes a resumed command should see what it has changed."""
    if run.adopted:
        say(f"new settings of {run.out}: {run.adopted}")
    run.adopted = ""  # said


def _times(count: int, what: str, of: str = "") -> str:
    return f"{count} {what}{'s' if count != 1 else ''} {of}".strip() if count else "skipped"


def hint_at_processes(config: Config, processes: Processes) -> str:
    """What to add to the command on a machine with cores to spare; "" if nothing was measured to be faster."""
    if processes.count > 1 or config.threads or config.model.name != EMBEDDED or gpus():
        return ""
    count = min(physical_cores(), MOST_PROCESSES, int(memory_gib() / GIB_EACH))
    return f"  faster on this machine: --processes {count}" if count >= LEAST_PROCESSES else ""


def described(config: Config) -> str:
    game = config.game
    played = " ".join([game.name, ",".join(f"{key}={value}" for key, value in game.params.items())]).strip()
    return f"{config.preset}: {played}, {game.limit} steps; model {_model_described(config.model)}; seed {config.seed}"


def _model_described(model: ModelConfig) -> str:
    """The model, and which of its weights learn, since `model.lora_*` without an adapter has no effect."""
    stored = "" if model.quantize == "none" else f" on {model.quantize}"
    learns = "all weights learn" if model.adapter == "none" else f"LoRA of rank {model.lora_rank}{stored} learns"
    return f"{model.name} ({learns})"
