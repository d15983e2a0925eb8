"""Weights in shards: the updates of one process, a state that fits both ways, and no end without a word.

The processes are forked from a server that has imported everything, each with the environment that a launcher gives it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from children import End, _work, start, wait

import architectures
import tiny
from grue.config import Config, flat, load_config
from grue.errors import ConfigError, GrueError, ModelError, TrainingError
from grue.storage.contents import read_metrics

if TYPE_CHECKING:
    import torch

    from grue.models.policy_model import PolicyModel, Reading
    from grue.parallel import Processes
    from grue.rollout.pack import Batch, Sample
    from grue.train.learner import Learner

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
# gradients are summed in another order: float32 rounding, after three steps and after a run
EXACT, TOLERANCE = 5e-6, 2e-4  # after steps of 0.003 per weight; some processors round to 1.2e-6 apart
TIMEOUT_S = 1500.0
FORMS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "float32"},
    "recomputing": {"dtype": "float32", "recompute": True},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    **{name: {"dtype": "float32", "architecture": name} for name in ("qwen3", "falcon", "gemma3", "gpt2", "phi")},
}


def launched(rank: int, count: int, port: int) -> None:
    """The environment of one of `count` processes."""
    if count > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "ACCELERATE_USE_CPU": "true",
        }
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def free_port() -> int:
    return random.Random(f"{os.getpid()}/{random.random()}").randrange(20_000, 40_000)


def model_of(architecture: str, seed: int) -> PolicyModel:
    import torch
    from transformers import AutoModelForCausalLM

    from grue.models.policy_model import PolicyModel

    if not architecture:
        return tiny.policy_model(seed)
    torch.manual_seed(seed)
    return PolicyModel(AutoModelForCausalLM.from_config(architectures.ALL[architecture]())).eval()


def made(form: str, seed: int, tokens: int, processes: Processes) -> tuple[PolicyModel, Learner]:
    import torch

    from grue.models.checkpointing import prepare_recomputing
    from grue.models.sharding import shard
    from grue.train.learner import Learner

    settings = dict(FORMS[form])
    model = model_of(settings.pop("architecture", ""), seed)
    if settings.get("recompute"):
        prepare_recomputing(model.lm)
    if processes.count > 1:
        shard(model, processes, getattr(torch, settings["dtype"]))
    learner = Learner(
        model,
        learning_rate=1e-3,
        value_learning_rate=1e-3,
        weight_decay=0.1,
        max_grad_norm=0.5,
        micro_tokens=tokens,
        processes=processes,
        **settings,
    )
    return model, learner


def loss_over(nodes: int, turns: int) -> Any:
    """Shares of the mean loss of policy and critic."""
    import torch

    def loss_of(reading: Reading, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        chosen_N = torch.log_softmax(reading.logits_NC, -1).gather(1, batch.chosen_N[:, None])
        value = ((reading.values_T - 1) ** 2).sum() / turns
        return -chosen_N.sum() / nodes + value, {"value": value.detach()}

    return loss_of


def critic_loss(reading: Reading, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """It reaches no weight of the language model."""
    return ((reading.values_T - 1) ** 2).sum(), {}


def broken_loss(reading: Reading, batch: Batch, *, broken: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = reading.values_T.sum() + reading.logits_NC[:, 0].sum()
    return loss * float("nan") if broken else loss, {}


def learnt(form: str, played: list[Sample], processes: Processes, folder: Path) -> dict[str, Any]:
    """Three steps, what is read before and after, and a checkpoint of all; returns numbers of this process."""
    from grue.policy.actor import Actor
    from grue.storage import checkpoint
    from grue.train.reference import Reference

    turns = [turn for item in played for turn in item.turns]
    loss_of = loss_over(sum(len(turn.branches) for turn in turns), len(turns))
    tokens = max(item.size for item in played)  # a micro-batch for each of an odd number of games
    model, learner = made(form, 0, tokens, processes)
    reference = Reference(model)
    rows = [learner.step(played, loss_of, 1.0) for _ in range(3)]
    with reference.in_place():
        before = learner.read(played, 1.0)
    after, measured = learner.read(played, 1.0), learner.measure(played, loss_of)
    actor = Actor(model, "float32")
    tensors, state = learner.state()
    if processes.leads:
        playing = {name: p.detach().float() for name, p in actor.model.named_parameters()}
        read = {f"before.{i}": logits for i, logits in enumerate(before)}
        read |= {f"after.{i}": logits for i, logits in enumerate(after)}
        checkpoint.save(folder / form, 3, {**tensors, "playing": playing, "read": read}, state)
    processes.wait()
    return {"rows": rows, "measured": measured, "resumed": resumed(form, played, loss_of, learner, folder)}


def resumed(form: str, played: list[Sample], loss_of: Any, learner: Learner, folder: Path) -> bool:
    """Does a learner that begins with other weights and takes up the checkpoint then do the same step?"""
    import torch

    from grue.storage import checkpoint

    stored = checkpoint.load(folder / form / "step-00000003")
    _, other = made(form, 1, learner.micro_tokens, learner.processes)
    other.load_state(stored.tensors, stored.state)
    same = other.step(played, loss_of, 1.0) == learner.step(played, loss_of, 1.0)
    (ours, _), (theirs, _) = learner.state(), other.state()
    return same and all(torch.equal(ours[g][n], theirs[g][n]) for g in ours for n in ours[g])


def _learn(rank: int, count: int, port: int, folder: Path, forms: tuple[str, ...]) -> None:
    launched(rank, count, port)
    import torch

    from grue.models.sharding import is_sharded, local
    from grue.process_group import join
    from grue.rollout.pack import samples

    torch.set_num_threads(1)
    processes = join()
    played = samples(tiny.rollouts(tiny.policy_model(), tiny.tasks(5)))
    found: dict[str, Any] = {form: learnt(form, played, processes, folder) for form in forms}
    model, learner = made("plain", 0, 64, processes)
    if count > 1:
        assert is_sharded(model)
        held = [local(p).clone() for p in model.lm.parameters()]
        found["share"] = sum(part.numel() for part in held) / sum(p.numel() for p in model.lm.parameters())
        learner.step(played, critic_loss, 1.0)
        found["only the critic"] = all(
            torch.equal(part, local(p)) for part, p in zip(held, model.lm.parameters(), strict=True)
        )
        try:
            learner.step(played, partial(broken_loss, broken=rank == 1), 1.0)
        except TrainingError as error:
            found["not finite"] = error.message
        if rank == 1:
            os._exit(9)
        try:
            learner.step(played, loss_over(1, 1), 1.0)
        except GrueError as error:
            found["lost"] = str(error)
    (folder / f"found-{count}.json").write_text(json.dumps(found))
    os._exit(0)  # nobody is left to take leave of


@pytest.mark.slow
@pytest.mark.parametrize("forms", [("plain",), tuple(form for form in FORMS if form != "plain")])
def test_two_processes_with_shards_learn_what_one_learns(forms: tuple[str, ...], tmp_path: Path) -> None:
    import torch

    from grue.storage import checkpoint

    (tmp_path / "one").mkdir()
    port, folders = free_port(), {1: tmp_path / "one", 2: tmp_path}
    children = [start(_learn, rank, 2, port, folders[2], forms) for rank in range(2)]
    assert [wait(child, TIMEOUT_S) for child in children] == [0, 9]
    assert wait(start(_learn, 0, 1, port, folders[1], forms), TIMEOUT_S) == 0
    one, two = (json.loads((folders[n] / f"found-{n}.json").read_text()) for n in (1, 2))

    assert two["only the critic"]
    assert two["not finite"].startswith("the loss is nan at optimiser step 1")
    assert two["share"] == pytest.approx(0.5, abs=0.05)
    assert "another process of this run has ended" in two["lost"]
    assert "the same command, without --again, goes on" in two["lost"]
    for form in forms:
        exact = FORMS[form]["dtype"] == "float32"
        assert one[form]["resumed"]
        assert two[form]["resumed"], form
        for ours, theirs in zip(
            [*one[form]["rows"], one[form]["measured"]], [*two[form]["rows"], two[form]["measured"]], strict=True
        ):
            assert ours == pytest.approx(theirs, rel=1e-5 if exact else 0.02)
        stored = [checkpoint.load(folder / form / "step-00000003") for folder in folders.values()]
        assert stored[0].state == stored[1].state
        assert {g: set(named) for g, named in stored[0].tensors.items()} == {
            g: set(named) for g, named in stored[1].tensors.items()
        }
        for name, ours in stored[0].tensors["model"].items():
            theirs = stored[1].tensors["model"][name]
            # AdamW moves a weight whose gradient is rounding as far as any other, here 0.003 one way or the other; the
            # bias of keys has no other gradient, as softmax does not see it
            equal = exact and not name.endswith(("c_attn.bias", "k_proj.bias"))
            assert (ours - theirs).abs().max() <= (EXACT if equal else 0.007), (form, name)
            assert (ours - theirs).abs().mean() <= (EXACT if equal else 5e-4), (form, name)
            playing = stored[1].tensors["playing"][name]
            rounded = theirs.to(getattr(torch, FORMS[form]["dtype"])).float()
            assert torch.equal(playing, theirs if name.startswith("value_head") else rounded), (form, name)
        read = stored[1].tensors["read"]
        for name, logits in stored[0].tensors["read"].items():
            theirs = read[name]  # how far rows are padded with -inf depends on what stood beside them
            gap = (logits[logits.isfinite()] - theirs[theirs.isfinite()]).abs()
            assert gap.mean() <= (1e-5 if exact else 0.1), (form, name)
        assert not torch.equal(read["before.0"], read["after.0"])


SMALL = ("ppo.iterations=3", "ppo.dev_every=2", "ppo.warmup_iterations=1", "sft.epochs=1", "eval.games=4")
KILLED = -signal.SIGKILL


def _run(rank: int, count: int, port: int, config: Config, out: Path, last: str, end: End | None) -> None:
    launched(rank, count, port)
    from grue.process_group import leave

    try:
        _work(config, out, last, end)
    except GrueError as error:
        out.with_name(f"{out.name}-said-{rank}").write_text(str(error))
        os._exit(1)
    leave()


def run_by_two(config: Config, out: Path, last: str, ends: tuple[End | None, End | None] = (None, None)) -> list[int]:
    """Exit codes of two processes that work on a run up to the stage `last`."""
    port = free_port()
    return [
        wait(child, TIMEOUT_S)
        for child in [start(_run, rank, 2, port, config, out, last, ends[rank]) for rank in range(2)]
    ]


@pytest.mark.slow
def test_a_run_with_shards_ends_as_one_without_and_goes_on_exactly(tiny_folder: Path, tmp_path: Path) -> None:
    """Whole runs: by one process, by two, and by two of which one was killed after a saved iteration."""
    import torch
    from children import work

    from grue.stages.trained import load_policy
    from grue.storage import checkpoint

    plain = tiny.config(tiny_folder, *SMALL, "ppo.kl_coef=0.1", "sft.micro_tokens=256")
    config = plain.model_copy(update={"model": plain.model.model_copy(update={"sharding": "fsdp"})})
    often = config.model_copy(update={"ppo": config.ppo.model_copy(update={"save_every_s": 0.0})})
    one, two, broken = (tmp_path / name for name in ("one", "two", "broken"))
    assert work(plain, one, "eval") == 0
    assert run_by_two(config, two, "eval") == [0, 0]
    assert run_by_two(often, broken, "ppo", (None, End("PPO", 2, signal.SIGKILL))) == [1, KILLED]
    assert "another process of this run has ended" in (tmp_path / "broken-said-0").read_text()
    assert run_by_two(config, broken, "ppo") == [0, 0]

    def weights(out: Path, stage: str) -> dict[str, torch.Tensor]:
        path = checkpoint.latest_valid(out / "checkpoints" / stage)
        assert path is not None
        return checkpoint.load(path).tensors["model"]

    for stage in ("sft", "ppo"):
        alone, together = weights(one, stage), weights(two, stage)
        assert set(alone) == set(together)
        assert all(torch.allclose(alone[name], together[name], atol=TOLERANCE) for name in alone), stage
    ours, theirs = weights(broken, "ppo"), weights(two, "ppo")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for ours_row, theirs_row in zip(read_metrics(one, "ppo"), read_metrics(two, "ppo"), strict=True):
        for name in ("success", "steps_mean", "kl_ref", "value_loss", "engine_gap"):
            if name in ours_row:
                assert ours_row[name] == pytest.approx(theirs_row[name], abs=1e-3), name
    load_policy(two)  # by one process, whole, checked against the game that the shards played


def test_what_shards_cannot_be_combined_with_is_said(tmp_path: Path) -> None:
    for settings, said in (
        (("model.adapter=lora",), "sharding=fsdp is for weights that learn: with adapter=lora, quantize=none"),
        (("model.quantize=nf4",), "with adapter=lora, quantize=nf4"),
        (("model.optimizer=adamw-8bit",), "sharding=fsdp needs optimizer=adamw: adamw-8bit"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_config("toy", ["model.sharding=fsdp", *settings])


def test_layers_within_layers_cannot_be_spread() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from grue.models.policy_model import PolicyModel
    from grue.models.sharding import shard
    from grue.parallel import Processes

    model = PolicyModel(AutoModelForCausalLM.from_config(architectures.zamba2()))
    with pytest.raises(ModelError, match="zamba2 has no layers that could be spread over processes") as caught:
        shard(model, Processes(), torch.float32)
    assert caught.value.hint == "set model.sharding=none"


def test_a_run_may_go_on_with_shards_or_without() -> None:
    """As with the number of processes, results are the same up to rounding, so it is a setting of the machine."""
    assert flat(load_config("toy", ["model.sharding=fsdp"]), local=False) == flat(load_config("toy"), local=False)


def test_one_process_has_nothing_to_spread_weights_over(tiny_folder: Path, tmp_path: Path) -> None:
    from grue import stages
    from grue.progress import Progress

    config = tiny.config(tiny_folder, "model.sharding=fsdp")
    for begin in (
        lambda: stages.run_all(config, tmp_path / "run", say=Progress(quiet=True)),
        lambda: stages.run_stage("ppo", config, tmp_path / "run", say=Progress(quiet=True)),
    ):
        with pytest.raises(ConfigError, match="this run has one") as caught:
            begin()
        assert "--processes 2" in caught.value.hint
    assert not (tmp_path / "run").exists()
