"""One arm of the memory benchmark, in a process of its own: `python -m grue.bench.memory_arm JSON`."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from grue.bench.common import facts
from grue.config import Config, ModelConfig, PPOConfig, override
from grue.errors import GrueError
from grue.models.load import load_base, load_model
from grue.models.policy_model import PolicyModel, Reading
from grue.rollout.pack import Batch, Sample
from grue.train.learner import Learner, LossFunction
from grue.train.ppo_update import ppo_loss, with_reference
from grue.train.reference import Reference
from grue.types import Branch, Observation, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MIB = 2**20
EVERY = 16  # tokens between two turns
CHILDREN = (3, 4, 5, 6)  # token ids that each turn chose among
Update = Callable[[list[Sample]], None]


def items_of(segments: int, tokens: int) -> list[Sample]:
    """Segments of random tokens that every vocabulary has."""
    generator = torch.Generator().manual_seed(0)
    nothing = Observation("", "", "", None, 0.0)
    places = range(EVERY - 1, tokens, EVERY)
    turns = tuple(
        Turn(nothing, "", 0.0, log_prob=-1.4, state_position=place, branches=(Branch(place, CHILDREN, 1),))
        for place in places
    )
    ids = torch.randint(0, 256, (segments, tokens), generator=generator).tolist()
    return [Sample(tuple(row), turns, (0.5,) * len(turns), (0.5,) * len(turns)) for row in ids]


def learner_of(model: PolicyModel, config: Config, value_learning_rate: float) -> Learner:
    """A learner whose passes read one segment each."""
    return Learner.of(model, config.model, config.ppo, value_learning_rate=value_learning_rate, micro_tokens=1)


def loss_with(cfg: PPOConfig, items: list[Sample], *, policy: bool) -> LossFunction:
    turns = sum(len(item.turns) for item in items)

    def loss_of(reading: Reading, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return ppo_loss(reading, batch, cfg, turns, cfg.entropy_coef, policy=policy)

    return loss_of


def shared(config: Config) -> tuple[PolicyModel, Update]:
    """grue's way: the reference is the adapter as it was, the value head reads the policy's hidden states."""
    model = PolicyModel(_own(load_model(config.model)[0]), value_shares_trunk=True)
    cfg = _ppo(config, value_passes=0)
    learner, reference = learner_of(model, config, cfg.value_learning_rate), Reference(model)

    def update(items: list[Sample]) -> None:
        with reference.in_place():
            items = with_reference(items, learner.read(items, cfg.temperature))
        learner.step(items, loss_with(cfg, items, policy=True), 1.0)

    return model, update


def separate(config: Config, quantize: str = "nf4") -> tuple[PolicyModel, Update]:
    """The usual way: a frozen reference model, and a value model with a trained adapter of its own."""
    other: ModelConfig = config.model.model_copy(update={"quantize": quantize})
    model = PolicyModel(_own(load_model(config.model)[0]))
    reference = PolicyModel(_own(load_base(other)[0]))
    critic = PolicyModel(_own(load_model(other)[0]), value_shares_trunk=True)
    cfg, critic_cfg = _ppo(config, value_passes=1), _ppo(config, value_passes=0)  # 1: no value term in the loss
    learner = learner_of(model, config, 0.0)
    critic_learner = learner_of(critic, config, cfg.value_learning_rate)

    def update(items: list[Sample]) -> None:
        items = with_reference(items, learner.read(items, cfg.temperature, model=reference))
        learner.step(items, loss_with(cfg, items, policy=True), 1.0)
        critic_learner.step(items, loss_with(critic_cfg, items, policy=False), 1.0)

    return model, update


def _own(model: PreTrainedModel) -> PreTrainedModel:
    """The model with its unquantised weights copied to memory of their own.

    On a CPU they are views of the mapped file, and while one of them is, all pages of the file that were read count as
    resident: besides the 4-bit weights, the whole model in 16 bits.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.clone()
    return model


def _ppo(config: Config, **changes: Any) -> PPOConfig:
    """The run's settings with a KL term, without which there would be no reference."""
    kl_coef = config.ppo.kl_coef or 0.01
    return config.ppo.model_copy(update={"kl_coef": kl_coef, "value_learning_rate": 1e-3, **changes})


ARMS: dict[str, Callable[[Config], tuple[PolicyModel, Update]]] = {
    "shared": shared,
    "separate": separate,
    "unquantised": lambda config: separate(config, "none"),
}


def held() -> int:
    """Bytes that this process holds now."""
    gc.collect()
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated()
    return _status("VmRSS")


def peak() -> int:
    """The most that it has held since the peak was reset."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _status("VmHWM")


def set_back() -> None:
    """Reset the peak to what is held now."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # proc(5): resets the peak resident set


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def measure(arm: str, config: Config, small: str, segments: int, tokens: int) -> dict[str, Any]:
    """Facts and MiB of one arm: held before the update, its peak, and the peak including loading."""
    torch.set_num_threads(config.threads or 1)
    torch.manual_seed(config.seed)
    _warm_up(arm, override(config, [f"model.name={small}"]), tokens)
    set_back()
    before = held()
    model, update = ARMS[arm](config)
    loaded, loading = held(), peak()
    set_back()
    update(items_of(segments, tokens))
    most = peak()
    return {
        **facts(config, model, config.threads or 1),
        "parameters": model.base_lm().num_parameters(),  # packed bytes count twice; includes the adapter
        "tokens_per_pass": tokens,
        "loaded_mib": _mib(loaded - before),
        "peak_mib": _mib(most - before),
        "peak_with_loading_mib": _mib(max(most, loading) - before),
    }


def _warm_up(arm: str, config: Config, tokens: int) -> None:
    """The whole arm with a small model: what libraries load or keep when they first run is not the model's."""
    _, update = ARMS[arm](config)
    update(items_of(1, tokens))


def _mib(count: int) -> float:
    return round(count / MIB, 1)


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    try:
        result = measure(**{**settings, "config": Config.model_validate(settings["config"])})
    except GrueError as error:
        sys.exit(error.message)
    print(json.dumps(result))
