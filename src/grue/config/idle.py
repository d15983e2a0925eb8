"""Settings that were changed but have no effect given the others: reported, as an experiment may depend on one."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from grue.config.keys import differences
from grue.config.load import preset_config
from grue.config.presets import PRESETS
from grue.config.stages import Config
from grue.names import FREE_TEXT, SWITCHES


class _Idle(NamedTuple):
    keys: tuple[str, ...]  # patterns of dotted keys
    where: Callable[[Config], bool]
    because: Callable[[Config], str]


def _kind(*kinds: str) -> tuple[Callable[[Config], bool], Callable[[Config], str]]:
    """Where the policy is none of `kinds`."""
    return lambda config: config.policy.kind not in kinds, lambda config: f"policy.kind={config.policy.kind}"


_RULES = (
    _Idle(("policy.top_p",), *_kind(*FREE_TEXT)),
    _Idle(("policy.min_p",), *_kind("aligned")),
    _Idle(("policy.normalise",), *_kind("score")),
    _Idle(("policy.reply_tokens", "ppo.invalid_penalty"), *_kind("write")),
    _Idle(("policy.thought_tokens",), *_kind("think")),
    _Idle(("sft.smoothing", "dagger.smoothing"), *_kind("choose", "aligned", "score", "think")),
    _Idle(("ppo.ratio",), *_kind("choose", *FREE_TEXT)),  # the others decide once a turn
    _Idle(
        ("model.revision",),
        lambda c: c.model.name == "embedded" or Path(c.model.name).is_dir(),
        lambda c: f"model.name={c.model.name}",
    ),
    _Idle(("model.lora_*",), lambda c: c.model.adapter == "none", lambda _: "model.adapter=none"),
    _Idle(
        ("demos.record_limit",),
        lambda c: c.demos.record_limit < c.game.limit,
        lambda c: f"game.limit={c.game.limit}, which is more",
    ),
    _Idle(("demos.*",), lambda c: not c.demos.games, lambda _: "demos.games=0"),
    _Idle(("demos.omission*",), lambda c: not c.demos.replays, lambda _: "demos.replays=0"),
    _Idle(("dagger.*",), lambda c: not c.dagger.rounds, lambda _: "dagger.rounds=0"),
    _Idle(("ppo.*",), lambda c: not c.ppo.iterations, lambda _: "ppo.iterations=0"),
    _Idle(("sft.*",), lambda c: not c.sft.epochs, lambda _: "sft.epochs=0"),
    _Idle(
        ("ppo.value_clip", "ppo.value_coef"),
        lambda c: c.ppo.value_passes > 0,
        lambda c: f"ppo.value_passes={c.ppo.value_passes}",
    ),
    _Idle(("ppo.value_memory",), lambda c: not c.ppo.value_passes, lambda _: "ppo.value_passes=0"),
    _Idle(("ppo.state_weight",), lambda c: not c.ppo.group_weight, lambda _: "ppo.group_weight=0"),
    _Idle(("ppo.warmup_iterations",), lambda c: not c.ppo.asks_critic, lambda _: "ppo.group_weight=1"),
    _Idle(  # in a shared loss they change the value head's gradient, and with it how far the joint one is clipped
        ("ppo.lam", "ppo.normalise_rewards"),
        lambda c: not c.ppo.asks_critic and c.ppo.value_passes > 0,
        lambda _: "ppo.group_weight=1",
    ),
    _Idle(  # what was played is what learns, until its first step
        ("ppo.clip", "ppo.clip_high", "ppo.target_kl"),
        lambda c: c.ppo.epochs * c.ppo.minibatches == 1,
        lambda _: "ppo.epochs=1 and ppo.minibatches=1, but for rounding",
    ),
    _Idle(("ppo.dev_games",), lambda c: not c.ppo.dev_every, lambda _: "ppo.dev_every=0"),
    _Idle(("dagger.dev_games",), lambda c: not c.dagger.dev_every, lambda _: "dagger.dev_every=0"),
)
_SWITCHES = tuple(f"{stage}.{setting}" for stage, setting in SWITCHES.items())


def idle_settings(config: Config) -> list[str]:
    """The settings that differ from the preset and have no effect, each with the reason."""
    if config.preset not in PRESETS:
        return []
    changed = {key: new for key, (_, new) in differences(preset_config(config.preset), config).items()}
    found: dict[str, str] = {}
    for rule in _RULES:
        if not rule.where(config):
            continue
        for key, value in changed.items():
            if key not in _SWITCHES and any(fnmatch(key, pattern) for pattern in rule.keys):
                found.setdefault(key, f"{key}={value} has no effect with {rule.because(config)}")
    return list(found.values())
