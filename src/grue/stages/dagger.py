"""DAgger as a stage of a run: who corrects, and what is learnt in each round."""

from __future__ import annotations

from typing import Any

from grue.errors import GameError
from grue.games.teachers import Adviser, teacher
from grue.rollout.pack import Sample
from grue.stages.lessons import each_pass, lessons
from grue.stages.session import Session
from grue.stages.show import keep_shown
from grue.train.dagger import Lessons, train_dagger


def check_adviser(session: Session) -> None:
    """GameError if the teacher that is to correct does not know what to do in such games."""
    name, game = session.config.dagger.teacher, session.config.game.name
    (played,), (task,) = session.games(1), session.tasks("train", 1)
    try:
        observation = played.reset(task)
        adviser = Adviser(teacher(name, played))
        adviser.start(task, observation)
        advice, trouble = adviser.advice(observation), adviser.trouble
    except GameError as error:
        advice, trouble = "", error.message
    if not advice:
        raise GameError(
            f"the teacher {name!r} cannot correct a policy that plays {game}: {trouble or 'it names no listed action'}",
            hint="choose another one with dagger.teacher=NAME, or none with dagger.rounds=0",
        )


def dagger(session: Session) -> dict[str, Any]:
    cfg, config = session.config.dagger, session.config
    session.load("sft")
    names = f"{config.seed}/dagger/names"

    def read(number: int) -> list[Sample]:
        return lessons(session, f"{names}/{number}/demos", cfg.rename, "demos", "replays")

    demos = each_pass(read, cfg.rename)

    def items_of(number: int) -> Lessons:
        shown = demos(number) if cfg.demo_share else []
        return Lessons(shown, lessons(session, f"{names}/{number}", cfg.rename, "dagger", corrected=True))

    learner = session.learner(cfg, dropout=True)
    facts = train_dagger(session.context(cfg, learner), items_of)
    session.tell_skipped(learner)
    keep_shown(session, "dagger", "after DAgger")
    return dict(facts)
