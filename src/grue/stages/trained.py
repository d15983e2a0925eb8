"""Load a trained policy: from its run, or from what `grue export` has made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grue.config import Config, read_config
from grue.errors import CheckpointError, ConfigError, DataError
from grue.evaluate.probe import Gap, check_probe, tolerance
from grue.models.export import load_artefact
from grue.models.learned import load_weights
from grue.models.load import load_model
from grue.models.policy_model import PolicyModel
from grue.names import FORMATS, FURTHEST_FIRST, LENGTHS, PLAYED_IN, TRAINING
from grue.policy.actor import Actor
from grue.policy.decision import Decoding
from grue.policy.policy import make_policy
from grue.prompts.tokens import Encoder
from grue.rollout.player import PolicyPlayer
from grue.storage import checkpoint, episodes
from grue.storage.contents import (
    ABOUT,
    UNMEASURED,
    checkpoints_folder,
    episodes_file,
    is_done,
    read_run_config,
    read_stages,
)
from grue.types import Episode

EXPORT_SETTINGS, PROBE = "grue.yaml", "probe.jsonl"  # of an exported folder
SCHEMA = 1


@dataclass(frozen=True)
class Trained:
    """A model with the weights of one stage, and how it is driven."""

    name: str  # "sft", "dagger" or "ppo"
    config: Config
    model: PolicyModel
    encoder: Encoder
    played: torch.dtype  # number format in which its recorded game was played
    stored: torch.dtype = torch.float32  # format of weights that were exported

    def check(self, probe: list[Episode], what: str, playing: PolicyModel | None = None) -> Gap:
        """How closely the model reproduces what was recorded when it played. ModelError if not closely enough.

        The copy that plays is checked, in its number format: `playing`, if there is one already.
        """
        playing = playing or Actor(self.model, self.config.model.dtype, reordered=False).model
        return check_probe(playing, probe, tolerance(self.config.model, self.played, self.stored), what)


def load_policy(
    folder: str | Path, policy: str | None = None, *, base: str | None = None, greedy: bool = True, seed: int = 0
) -> PolicyPlayer:
    """The trained policy of a run directory or of an exported folder, ready to `act` on observations.

    `policy` is "base", "sft", "dagger" or "ppo"; by default the furthest that the run has reached. `base` is where the
    model that it was trained from is now, if not where `model.name` says. Before the policy is returned, it must
    reproduce the log-probabilities of a recorded game; ModelError if it does not.
    """
    trained = load_trained(Path(folder), policy, base)
    config = trained.config
    model = Actor(trained.model, config.model.dtype).model
    probe = read_probe(Path(folder), trained.name)
    if probe:
        trained.check(probe, f"the policy in {folder}", model)
    elif (Path(folder) / ABOUT).exists():  # an export always holds one
        raise DataError(
            f"{Path(folder) / PROBE} holds no recorded game to check the weights with", hint="export the run again"
        )
    playing = make_policy(model, trained.encoder)
    decoding = Decoding(greedy, config.sampling_temperature)
    return PolicyPlayer(
        playing,
        name=trained.name,
        context=config.model.context,
        limit=config.game.limit,
        decoding=decoding,
        seed=f"{config.seed}/{seed}",
    )


def load_trained(folder: Path, policy: str | None = None, base: str | None = None) -> Trained:
    """The model in a run directory or an exported folder. `base` replaces `model.name`."""
    if (folder / ABOUT).exists():
        return _load_exported(folder, policy, base)
    config = _on(base, read_run_config(folder))
    name = policy or furthest(folder)
    check_trains(folder, config, name)
    lm, tokenizer = load_model(config.model)
    model = PolicyModel(lm, value_shares_trunk=config.ppo.value_shares_trunk)
    encoder = Encoder(tokenizer, config.policy)
    if name != "base":
        load_weights(model, stage_weights(folder, name, encoder.fingerprint))
    return Trained(name, config, model.eval(), encoder, played_in(config, read_stages(folder).get(name, {})))


def furthest(run: Path) -> str:
    """The last stage of a run that has left weights. CheckpointError if none has."""
    name = last_trained(run)
    if name is None and not any(read_run_config(run).lengths.values()):
        nothing = ", ".join(f"{stage}.{setting}=0" for stage, setting in LENGTHS.items())
        example = "sft {run} sft.epochs=1" if read_run_config(run).demos.games else "ppo {run} ppo.iterations=20"
        raise CheckpointError(
            f"{run} trains no policy: {nothing}", hint=f"for example: grue {example.format(run=run)} --again"
        )
    if name is None:
        raise CheckpointError(
            f"{run} holds no trained policy yet", hint=f"train one: grue sft {run}, then grue ppo {run}"
        )
    return name


def last_trained(run: Path) -> str | None:
    """The same; None if none has been trained. CheckpointError if the weights of a finished stage are gone."""
    lengths = read_run_config(run).lengths
    for name in FURTHEST_FIRST:
        if not lengths[name]:  # what PPO begins with if SFT was skipped is not a policy of its own
            continue
        if _newest(run, name) is not None:
            return name
        if is_done(run, name):
            check_weights(run, name, instead=True)  # an earlier policy is not silently used instead
    return None


def check_trains(run: Path, config: Config, policy: str) -> None:
    """CheckpointError if `policy` is a stage that the run leaves out. What it hands on is the policy before it."""
    if config.lengths.get(policy) == 0:
        raise CheckpointError(
            f"{run} has no {policy} weights: its settings skip that stage",
            hint=f"to train them: grue {policy} {run} {policy}.{LENGTHS[policy]}=N --again",
        )


def check_trained(run: Path, config: Config) -> None:
    """CheckpointError if a stage that belongs to the run has left no weights."""
    for stage, length in config.lengths.items():
        if length:
            check_weights(run, stage)


def check_weights(run: Path, stage: str, *, instead: bool = False) -> Path:
    """The checkpoint that is the result of a stage. CheckpointError if there is none; `instead` suggests others."""
    path = _newest(run, stage)
    if path is not None:
        return path
    folder, before = checkpoints_folder(run, stage), FURTHEST_FIRST[FURTHEST_FIRST.index(stage) + 1 :]
    if stage != "sft" or not is_done(run, stage):  # SFT hands on what it began with, where it is skipped
        check_trains(run, read_run_config(run), stage)
    if not is_done(run, stage):
        raise CheckpointError(f"{folder} holds no checkpoint", hint=f"run the stage first: grue {stage} {run}")
    others = "".join(f", or use --policy {name}" for name in before if instead and _newest(run, name) is not None)
    what = f"{'best weights' if _is_chosen(run, stage) else 'checkpoint'} that can be read"
    raise CheckpointError(
        f"{folder} holds no {what}, though {stage} is done",
        hint=f"put it back, or train again, which deletes later stages' results: grue {stage} {run} --again{others}",
    )


def stage_weights(run: Path, stage: str, prompt: str) -> dict[str, Any]:
    """The weights that are the result of a stage: the best ones on dev, else the last.

    `prompt` is the hash of the prompt format; CheckpointError if they were trained with another.
    """
    if stage not in TRAINING:
        raise ConfigError(f"there is no trained policy {stage!r}", hint=f"known are base, {', '.join(TRAINING)}")
    path = check_weights(run, stage)
    try:
        stored = checkpoint.load(path, prompt=prompt)
    except CheckpointError:
        if not checkpoint.is_gone(path):
            raise
        stored = checkpoint.load(check_weights(run, stage), prompt=prompt)  # a training goes on, and has saved anew
    return dict(stored.tensors["model"])


def keep_probe(run: Path, policy: str, episode: Episode) -> None:
    """Keep a game that a policy has just played, to check copies of the policy with."""
    file = _probe_file(run, policy)
    file.unlink(missing_ok=True)
    episodes.append(file, [episode])


def read_probe(folder: Path, policy: str) -> list[Episode]:
    """What `keep_probe` or an export has kept; [] if there is none."""
    file = folder / PROBE if (folder / ABOUT).exists() else _probe_file(folder, policy)
    return list(episodes.read(file, missing_ok=True))


def played_in(config: Config, facts: Mapping[str, Any]) -> torch.dtype:
    """The number format in which a policy's game was recorded, by facts about its stage or its exported folder.

    Older ones do not say: with "auto" another machine may have played, in a coarser format than this one's.
    """
    known = known_format(config, facts) or "bfloat16"
    dtype: torch.dtype = getattr(torch, known)
    return dtype


def known_format(config: Config, facts: Mapping[str, Any]) -> str:
    """The same by its name; "" where it is not known."""
    return str(facts.get(PLAYED_IN, "" if config.model.dtype == "auto" else config.model.dtype))


def read_about(folder: Path) -> dict[str, Any]:
    """grue.json of an exported folder. DataError if it is not one."""
    try:
        about: dict[str, Any] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about["schema"] != SCHEMA or about["what"] not in ("adapter", "merged") or about["policy"] not in TRAINING:
            raise ValueError(f"schema {about['schema']}, {about['what']} of {about['policy']}")
        for key in {"dtype", PLAYED_IN} & {*about}:
            if about[key] not in FORMATS:
                raise ValueError(f"unknown format {key} {about[key]!r}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{folder} was not made by grue export: {error}", hint="grue export RUN --to DIR") from error
    return about


def _on(base: str | None, config: Config) -> Config:
    """The configuration with the model called `base`."""
    if base is None:
        return config
    model = config.model.model_copy(update={"name": str(base), "revision": None})
    return config.model_copy(update={"model": model})


def _load_exported(folder: Path, policy: str | None, base: str | None) -> Trained:
    about = read_about(folder)
    if policy not in (None, about["policy"]):
        raise ConfigError(f"{folder} holds {about['policy']}, not {policy}", hint="leave the policy out")
    if base is not None and about["what"] == "merged":
        raise ConfigError(f"{folder} holds a whole model, which has no base", hint="leave the base out")
    config = _on(base, read_config(folder / EXPORT_SETTINGS))
    lm, tokenizer, head = load_artefact(folder, about["what"], config.model)
    encoder = Encoder(tokenizer, config.policy)
    checkpoint.check_same_prompt(folder, about.get("prompt"), encoder.fingerprint)
    model = PolicyModel(lm, head, value_shares_trunk=config.ppo.value_shares_trunk)
    stored = getattr(torch, about.get("dtype", "float32"))
    return Trained(about["policy"], config, model.eval(), encoder, played_in(config, about), stored)


def _newest(run: Path, stage: str) -> Path | None:
    """The best weights; the last ones if dev games chose none, or have not chosen yet."""
    folder = checkpoints_folder(run, stage)
    best = checkpoint.best_valid(folder)
    if best is None and is_done(run, stage) and _is_chosen(run, stage):
        return None  # other weights than those that dev games chose are not silently used instead
    return best or checkpoint.latest_valid(folder)


def _is_chosen(run: Path, stage: str) -> bool:
    """Are the weights of a finished stage those that did best on dev games?"""
    return bool(read_stages(run).get(stage, {}).get("best_merit", UNMEASURED) > UNMEASURED)


def _probe_file(run: Path, policy: str) -> Path:
    return episodes_file(run, f"probe-{policy}")
