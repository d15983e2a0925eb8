"""SFT as a stage of a run: the demonstrations, with names exchanged anew in each epoch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from grue.rollout.pack import Sample
from grue.stages.lessons import lessons
from grue.stages.session import Session
from grue.stages.show import keep_shown
from grue.train.sft import train_sft


def sft(session: Session) -> dict[str, Any]:
    cfg, config = session.config.sft, session.config
    session.load("base")
    keep_shown(session, "base", "before training")
    names = f"{config.seed}/sft/names"

    @lru_cache(maxsize=1)
    def items_of(reading: int) -> list[Sample]:
        return lessons(session, names + (f"/{reading}" if reading else ""), cfg.rename, "demos", "replays")

    learner = session.learner(cfg, dropout=True)
    # names are drawn anew for each epoch; without renaming all epochs read the same
    count = train_sft(
        session.run,
        config,
        learner,
        lambda epoch: items_of(epoch if cfg.rename else 0),
        session.say,
        session.interrupt,
    )
    session.tell_skipped(learner)
    if cfg.epochs:
        keep_shown(session, "sft", "after SFT")
    return {"samples": count, "optimiser_steps": learner.step_count}
