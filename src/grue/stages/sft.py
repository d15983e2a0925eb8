"""SFT as a stage of a run: the demonstrations, with names exchanged anew in each epoch."""

from __future__ import annotations

from typing import Any

from grue.rollout.pack import Sample
from grue.stages.lessons import each_pass, lessons
from grue.stages.session import Session
from grue.stages.show import keep_shown
from grue.train.sft import train_sft


def sft(session: Session) -> dict[str, Any]:
    cfg, config = session.config.sft, session.config
    session.load("base")
    keep_shown(session, "base", "before training")
    names = f"{config.seed}/sft/names"

    def read(number: int) -> list[Sample]:
        return lessons(session, names + (f"/{number}" if number else ""), cfg.rename, "demos", "replays")

    learner = session.learner(cfg, dropout=True)
    count = train_sft(session.run, config, learner, each_pass(read, cfg.rename), session.say, session.interrupt)
    session.tell_skipped(learner)
    if cfg.epochs:
        keep_shown(session, "sft", "after SFT")
    return {"samples": count, "optimiser_steps": learner.step_count}
