"""The model card of an exported policy: what it plays, how well, and how to load it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from grue.config import Config
from grue.games.known import is_one_game, ships
from grue.models.sources import EMBEDDED
from grue.names import PLAYED_IN
from grue.report.metrics import policy_title

USE = """```python
from grue import load_policy

policy = load_policy("folder")  # this one; from a hub: huggingface_hub.snapshot_download("OWNER/NAME")
action = policy.act(observation)  # a grue.types.Observation; policy.reset() before another game
```"""


_SEEN = {
    "train": "of which the training may have played some",
    "dev": "which were not trained on",
    "test": "which no part of the training has seen",
}


def model_card(config: Config, about: Mapping[str, Any], results: Mapping[str, Any] | None) -> str:
    """Markdown with the metadata that hubs read. `results` is the run's results.json, if there is one."""
    game, merged = config.game, about["what"] == "merged"
    params = ", ".join(f"{key}={value}" for key, value in game.params.items()) or "default parameters"
    probe = about["probe"]
    parts = [
        _metadata(config, about),
        f"# {policy_title(about['policy'])} policy for {game.name}",
        f"A language-model policy that plays the text game {game.name} ({params}), {game.limit} steps a game. It was "
        f"trained with grue, preset `{config.preset}`, seed "
        f"{config.seed}, on top of `{about['base']}`. "
        + (
            (
                "The adapter is merged into the weights."
                if config.model.adapter == "lora"
                else "All weights were trained."
            )
            if merged
            else "This is an adapter: loading it loads the base as well."
        ),
        "## Use",
        USE,
        (
            _loaded_by(merged, config.model.name)
            + "; the prompt format and the way from logits to actions are part of grue."
            + (
                ""
                if merged
                else f" The adapter learnt on the base {_format(config, about)}; in another format its outputs differ."
            )
        ),
        "## Results",
        *_results(config, about["policy"], results),
        "## Check",
        (
            f"Before release, a recorded game was read with these files: over {probe['turns']} turns the "
            f"log-probability of an action differs from that during play by {probe['mean']:.2g} nats on average and by "
            f"{probe['largest']:.2g} at most; {probe['same_choice']:.1%} of the choices are the same."
            if probe["turns"]
            else "The recorded game left the policy no choice at any turn, so there was nothing to compare."
        ),
        "## Limits",
        (
            "It was trained on this game with these parameters, with one seed, and is not meant for conversation. "
            "The intervals say nothing about another training seed."
        )
        + _free_text(config, about["policy"]),
        "## Versions",
        ", ".join(f"{name} {version}" for name, version in about["versions"].items()),
    ]
    return "\n\n".join(parts) + "\n"


def _loaded_by(merged: bool, base: str) -> str:
    if not merged and base == EMBEDDED:  # peft would look for it on a hub
        return "The base is the one that comes with grue: `peft` needs it from `grue.models.load.embedded_folder()`"
    return f"Plain {'`transformers`' if merged else '`peft`'} loads the weights too"


def _free_text(config: Config, policy: str) -> str:
    if config.policy.kind == "write":
        return ""
    why = (
        ": PPO has compared valid actions with each other only" if policy == "ppo" and not config.ppo.valid_coef else ""
    )
    return (
        " The results are of play that chooses among the actions that the game lists as valid. Text that is generated "
        f"freely need not be one of them, and may win less{why}."
    )


def _format(config: Config, about: Mapping[str, Any]) -> str:
    """The number format in which the base played under its adapter."""
    if config.model.quantize == "nf4":
        return "in NF4 with double quantisation (bitsandbytes)"
    if config.model.quantize == "int8":
        return "in 8 bits (bitsandbytes)"
    if PLAYED_IN not in about:  # of a run of an older version
        return "in the format of its matrix products (`model.dtype` in `grue.yaml`)"
    return f"in `{about[PLAYED_IN]}`"


def _metadata(config: Config, about: Mapping[str, Any]) -> str:
    data: dict[str, Any] = {"library_name": "transformers" if about["what"] == "merged" else "peft"}
    if "/" in about["base"]:  # hubs link it, so it must be one of their names
        data["base_model"] = about["base"]
    data["pipeline_tag"] = "text-generation"
    data["tags"] = ["grue", "reinforcement-learning", "text-game", config.game.name]
    return f"---\n{yaml.safe_dump(data, sort_keys=False, allow_unicode=True)}---"


def _results(config: Config, policy: str, results: Mapping[str, Any] | None) -> list[str]:
    """The table of the final evaluation, with the players that it is compared with."""
    measured = results["policies"].get(policy, {}).get("decoding") if results else None
    if not results or not measured:  # results may be older than this policy
        return ["Not evaluated."]
    fold = config.eval.fold
    rows = [
        "| policy | decoding | games | success | 95 % interval | score | failed |",
        "|---|---|---:|---:|---|---:|---:|",
    ]
    for name in dict.fromkeys(("random", "gold", config.demos.teacher, "base", policy)):
        for decoding, row in results["policies"].get(name, {}).get("decoding", {}).items():
            rows.append(_row(f"**{name}**" if name == policy else name, decoding, row))
    first = next(iter(measured.values()))
    seeds = first["seeds"]
    kind, temperature = config.policy.kind, config.sampling_temperature
    seen = "all of the one story that it was trained on" if is_one_game(config.game.name) else _SEEN[fold]
    if fold == "test" and not ships(config.game.name):  # whose games may be alike whatever the seed
        seen = "whose seeds no part of the training has used"
    if fold == "dev" and policy in ("dagger", "ppo") and getattr(config, policy).dev_every:
        seen = "on which the weights were chosen"
    return [
        (
            f"Fold `{fold}`, seeds {seeds[0]} to {seeds[1]}, {seen}. The policy is of "
            f"the kind `{kind}`; sampled decoding has temperature {temperature}. {_intervals(first)}"
        ),
        "\n".join(rows),
    ]


def _intervals(row: Mapping[str, Any]) -> str:
    if "problems" not in row:
        return "Intervals are Wilson intervals."
    return (
        f"The {row['games']} games pose {row['problems']} different problems, so intervals are Wilson intervals "
        "with the number of independent games that would vary as much."
    )


def _row(name: str, decoding: str, row: Mapping[str, Any]) -> str:
    if row["success"] is None:
        return f"| {name} | {decoding} | 0 | - | - | - | {row['failed']} |"
    low, high = row["success_ci95"]
    return (
        f"| {name} | {decoding} | {row['games']} | {row['success']:.1%} | {low:.1%} to {high:.1%} | {row['score']:.3f} "
        f"| {row['failed']} |"
    )
