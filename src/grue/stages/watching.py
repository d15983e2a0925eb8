"""A trained policy of a run plays one game for people to watch."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from grue.games import fold_of
from grue.progress import Progress
from grue.stages.session import open_session
from grue.stages.show import print_episode, shown_episode
from grue.stages.trained import check_trains, last_trained
from grue.storage.contents import read_run_config
from grue.storage.run import Run


def watch(
    out: Path, *, policy: str | None, decoding: str, seed: int | None, delay_s: float, say: Progress
) -> dict[str, Any]:
    """Show a trained policy of a run play one game."""
    config = read_run_config(out)
    run = Run(out, config, leads=False)  # it only reads, so the run may be in training meanwhile
    with open_session(run, config, say) as session:
        name = policy or last_trained(out) or "base"
        check_trains(out, config, name)
        session.load(name)
        task = session.tasks("dev", 1)[0]
        if seed is not None:
            task = replace(task, fold=fold_of(seed), seed=seed)
        shown = shown_episode(session, name, "watched", task, greedy=decoding == "greedy")
        session.interrupt.check()
    print_episode(say, shown, delay_s=delay_s)  # after the session: there is nothing to save, so Ctrl-C ends it at once
    return asdict(shown)
