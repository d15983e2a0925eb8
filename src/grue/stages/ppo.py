"""PPO as a stage of a run: what it begins with, and the games it plays."""

from __future__ import annotations

from typing import Any

from grue.stages.demos import demo_steps
from grue.stages.session import Session
from grue.stages.show import keep_shown
from grue.train.ppo import train_ppo


def ppo(session: Session) -> dict[str, Any]:
    cfg, config = session.config.ppo, session.config
    if not cfg.iterations:
        session.say("PPO is skipped: ppo.iterations=0")
        return {}
    if cfg.invalid_penalty and not session.lists_actions:
        session.say.warn(f"{config.game.name} lists no actions: ppo.invalid_penalty is for empty replies alone")
    session.load("dagger" if config.dagger.rounds else "sft")
    learner = session.learner(cfg, value_learning_rate=cfg.value_rate_in_loss)
    facts = train_ppo(session.context(cfg, learner), demo_steps(session) if cfg.game_baseline else None)
    session.tell_skipped(learner)
    keep_shown(session, "ppo", "after PPO")
    return dict(facts)
