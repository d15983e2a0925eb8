"""On a GPU every tensor is where it has to be. The GPU is pretended (`pretended_gpu`): nothing is said of its speed."""

from __future__ import annotations

import importlib
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from children import DoomedProgress, End
from packaging.version import Version
from transformers import PreTrainedModel

import decoders
import tiny
from grue import games, load_policy, process_group, stages
from grue.config import override
from grue.engine.engine import Engine
from grue.engine.tree import TokenTree
from grue.errors import ConfigError
from grue.games.play import play
from grue.interrupt import Interrupted
from grue.models.load import compute_dtype, load_model
from grue.progress import Progress
from grue.rollout.pack import samples
from grue.stages.export import export_run
from grue.stages.session import open_session
from grue.storage import checkpoint
from grue.storage.contents import checkpoints_folder
from grue.storage.run import Run
from grue.train.learner import Learner
from pretended_gpu import Gpu, OnGpu, pretended

QUIET = Progress(quiet=True)
# the stand-in is a tensor that older ones refuse inside inference mode
pytestmark = pytest.mark.skipif(Version(torch.__version__) < Version("2.13"), reason="the stand-in needs torch 2.13")
SMALL = (
    "demos.games=4",
    "sft.epochs=1",
    "ppo.iterations=1",
    "ppo.warmup_iterations=0",
    "ppo.episodes_per_iteration=4",
    "ppo.dev_games=2",
    "eval.games=2",
)


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    for package in ("peft", "bitsandbytes"):  # it looks for CUDA's own library when it is imported
        try:
            importlib.import_module(package)
        except ImportError:
            continue
    with pretended() as found:
        yield found


def test_the_pretended_gpu_refuses_what_a_gpu_refuses(gpu: Gpu) -> None:
    there, here = torch.ones(3, device="cuda"), torch.ones(3)
    for mixed in (lambda: there + here, lambda: here[there.long()], lambda: torch.cat([there, here])):
        with pytest.raises(RuntimeError, match="same device"):
            mixed()
    with pytest.raises(TypeError, match="numpy"):
        np.asarray(there)
    there[:2] = here[:2] * 5  # a copy may cross, an index and a single number come along
    assert (there[torch.tensor([0, 2])] + torch.tensor(1.0)).tolist() == [6, 2]
    assert gpu.waits == 1
    weight = torch.nn.Linear(3, 1).to("cuda").weight
    assert weight.is_cuda and isinstance(weight, torch.nn.Parameter)
    start = torch.ones(3, requires_grad=True)
    (start.to("cuda") @ weight[0] * 2).cpu().backward()
    assert torch.allclose(start.grad, 2 * weight[0].cpu())
    assert isinstance(weight.grad, OnGpu)


@pytest.mark.parametrize(("major", "wanted"), [(7, torch.float16), (8, torch.bfloat16)])
def test_a_gpu_that_only_emulates_bfloat16_is_given_float16(major: int, wanted: torch.dtype) -> None:
    """V100 and T4: torch makes tensors in bfloat16 there, and multiplies them slowly."""
    with pretended(major):
        assert torch.cuda.is_bf16_supported()
        assert compute_dtype("auto", "cuda") is wanted


def test_more_processes_than_gpus_are_refused(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "_end_with_parent", lambda: None)  # it would be said of this process for good
    for name, value in {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="2 processes were started here, and torch sees 1 GPU") as caught:
        process_group.join()
    assert "without --processes or a launcher" in caught.value.hint
    monkeypatch.setenv("GROUP_WORLD_SIZE", "3")
    with pytest.raises(ConfigError) as caught:
        process_group.join()
    assert "at most 3;" in caught.value.hint


def test_one_thread_is_enough_beside_a_gpu(
    gpu: Gpu, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before, config = torch.get_num_threads(), tiny.config(tiny_folder)
    try:
        for threads, expected in ((0, 1), (2, 2)):
            wanted = override(config, [f"threads={threads}"])
            with open_session(Run(tmp_path / str(threads), wanted), wanted, QUIET):
                assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


def _checkpoint(run: Path, stage: str) -> checkpoint.Checkpoint:
    newest = checkpoint.latest_valid(checkpoints_folder(run, stage))
    assert newest is not None
    return checkpoint.load(newest)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ["policy.kind=aligned", "model.dtype=bfloat16", "ppo.game_baseline=true", "ppo.plays_per_game=2"],
        ["policy.kind=choose", "model.adapter=lora", "model.lora_dropout=0.1", "model.gradient_checkpointing=true"],
        [
            "policy.kind=score",
            "model.adapter=lora",
            "model.lora_dora=true",
            "ppo.kl_coef=0.1",
            "ppo.value_passes=0",
        ],
        ["policy.kind=write", "policy.reply_tokens=4", "policy.top_p=0.9", "model.dtype=float16"],
        ["policy.kind=think", "policy.thought_tokens=3", "policy.list_actions=true", "policy.history=2"],
    ],
    ids=lambda settings: settings[0],
)
def test_a_run_on_a_gpu(settings: list[str], gpu: Gpu, tiny_folder: Path, tmp_path: Path) -> None:
    config = tiny.config(tiny_folder, *SMALL, *settings)
    stages.run_all(config, tmp_path / "run", say=QUIET)
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert all(results["policies"][name]["decoding"]["greedy"]["failed"] == 0 for name in ("base", "sft", "ppo"))
    assert {type(parameter.data) for parameter in load_model(config.model)[0].parameters()} == {OnGpu}


@pytest.mark.slow
def test_a_training_goes_on_and_is_exported(gpu: Gpu, tiny_folder: Path, tmp_path: Path) -> None:
    config = tiny.config(tiny_folder, *SMALL, "model.adapter=lora", "ppo.iterations=2", "ppo.save_every_s=0")
    for stage in ("demos", "sft"):
        stages.run_stage(stage, config, tmp_path / "run", say=QUIET)
    with pytest.raises(Interrupted):
        stages.run_stage("ppo", config, tmp_path / "run", say=DoomedProgress(End("PPO", 1, signal.SIGINT)))
    assert _checkpoint(tmp_path / "run", "ppo").step == 1
    stages.run_stage("ppo", config, tmp_path / "run", say=QUIET)
    assert _checkpoint(tmp_path / "run", "ppo").step == 2
    # not an adapter: peft has safetensors read it onto the GPU
    export_run(tmp_path / "run", what="merged", say=QUIET)
    assert play(games.make("toy"), tiny.tasks(1, "dev")[0], load_policy(tmp_path / "run")).turns


def test_sft_learns_what_it_learns_on_a_cpu(tiny_folder: Path, tmp_path: Path) -> None:
    config, learnt = tiny.config(tiny_folder, *SMALL), []
    for place in (nullcontext(), pretended()):
        folder = tmp_path / f"run{len(learnt)}"
        with place:
            for stage in ("demos", "sft"):
                stages.run_stage(stage, config, folder, say=QUIET)
        learnt.append(_checkpoint(folder, "sft").tensors["model"])
    assert learnt[0].keys() == learnt[1].keys()
    for name, weights in learnt[0].items():
        assert torch.allclose(weights, learnt[1][name], atol=1e-5), name


@pytest.mark.parametrize("kind", ["paged-adamw", "paged-adamw-8bit"])
@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
def test_moments_are_paged_again_when_they_are_loaded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for CUDA's managed memory, which bitsandbytes shows as a tensor of the CPU."""
    functional = pytest.importorskip("bitsandbytes.functional")

    def managed(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        tensor = torch.zeros(shape, dtype=dtype)
        tensor.is_paged = True
        return tensor

    monkeypatch.setattr(functional, "get_paged", managed)
    monkeypatch.setattr(functional, "fill", lambda tensor, value: tensor.fill_(value))
    fixed = {"learning_rate": 1e-2, "weight_decay": 0.01, "max_grad_norm": 1.0, "micro_tokens": 300, "dtype": "float32"}
    trained = Learner(tiny.policy_model(hidden=320), optimizer=kind, **fixed)
    played = samples(tiny.rollouts(tiny.policy_model(), tiny.tasks(1)))
    trained.step(played, lambda reading, batch: (torch.log_softmax(reading.logits_NC, -1)[:, 0].sum(), {}), 1.0)
    tensors, numbers = trained.state()
    with pretended():
        resumed = Learner(tiny.policy_model(hidden=320).to("cuda"), optimizer=kind, **fixed)
        resumed.load_state(tensors, numbers)
        state = {parameter.shape: moments for parameter, moments in resumed.optimizer.state.items()}
        paged = [m[name] for s, m in state.items() if s.numel() >= 100_000 for name in ("state1", "state2")]
        assert paged and all(getattr(moments, "is_paged", False) for moments in paged)
        # bitsandbytes pages large ones only
        assert all(type(m["state1"]) is OnGpu for s, m in state.items() if s.numel() < 100_000)
        again = {name: moments.cpu() for name, moments in resumed.state()[0]["optimizer"].items()}
    assert again.keys() == tensors["optimizer"].keys()
    for name, moments in tensors["optimizer"].items():
        assert torch.equal(again[name], moments), name


# of experts transformers gives to a kernel that CPUs have not
ARCHITECTURES = [make for make in decoders.ARCHITECTURES if make not in (decoders.gpt_oss, decoders.deepseek)]


@pytest.mark.parametrize("make_model", [*ARCHITECTURES, *decoders.RECURRENT])
def test_the_engine_on_a_gpu(make_model: Callable[[], PreTrainedModel], gpu: Gpu) -> None:
    """States are those of a plain pass there, and no layer waits for the GPU."""
    model = make_model().to("cuda")
    engine, recurrent = Engine(model, 6, 96), make_model in decoders.RECURRENT
    # these take views of weights, which pretended tensors do not give in inference mode
    feed = torch.no_grad()(partial(Engine.feed.__wrapped__, engine)) if recurrent else engine.feed
    texts = [[7, 8, 9], [5] * 20, [3, 4]]
    for row, ids in enumerate(texts):
        feed([row], [ids])
    waits = gpu.waits
    feed([1], [[6]])
    hidden = feed([2, 0, 4], [[11], [12, 13], [14] * 3])
    if not recurrent:
        nothing, tree = TokenTree((), (), ()), TokenTree((1, 2, 3), (-1, 0, -1), (0, 1, 0))
        assert engine.looks_ahead
        assert engine.look_ahead([1, 5], [[5], [6, 7]], [tree, nothing]).shape[0] == 5
    assert gpu.waits == waits

    def check(hidden: torch.Tensor, ids: list[int]) -> None:
        with torch.no_grad():
            plain = model.get_decoder()(input_ids=torch.tensor([ids], device="cuda"), use_cache=False)
        assert torch.allclose(hidden.cpu(), plain.last_hidden_state[0, -1].cpu(), atol=1e-4, rtol=1e-4)

    texts = [[3, 4, 11], [7, 8, 9, 12, 13], [14] * 3]
    for place, ids in enumerate(texts):
        check(hidden[place], ids)
    for token in range(4):  # as in writing
        hidden = feed([2, 0, 4], [[token], [20], [21 + token]])
        for ids, new in zip(texts, (token, 20, 21 + token), strict=True):
            ids.append(new)
    for place, ids in enumerate(texts):
        check(hidden[place], ids)
