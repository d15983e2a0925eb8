"""Checkpoints that come quantised with GPTQ, AWQ or as compressed-tensors: read, trained, exported, or refused."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

import packed_checkpoints
import tiny
from grue import games, load_policy, stages
from grue.config import ModelConfig, PolicyConfig, load_config
from grue.errors import ConfigError, ModelError
from grue.evaluate.probe import replay
from grue.models.load import default_device, load_base, load_model
from grue.models.memory import activation_bytes, weight_bytes
from grue.models.policy_model import PolicyModel
from grue.models.skeleton import check_model, skeleton
from grue.models.stored import LIBRARIES_OF, stored_bytes
from grue.policy.choose import ChoosePolicy
from grue.policy.decision import Decoding
from grue.policy.drivable import check_drivable
from grue.progress import Progress
from grue.prompts.tokens import Encoder
from grue.rollout.collect import collect
from grue.rollout.pack import collate, samples
from grue.stages.export import export_run
from grue.types import Episode

QUIET = Progress(quiet=True)
PARTS = (".qweight", ".qzeros", ".scales")  # of a packed layer
METHODS = ("gptq", "awq", "compressed-tensors")
pytestmark = [
    # of the libraries' own modules, when they are imported
    pytest.mark.filterwarnings("ignore::Warning:(gptqmodel|optimum|torchao|defuser|compressed_tensors)"),
    # gptqmodel makes a folder for each configuration that it reads, and leaves its end to Python
    pytest.mark.filterwarnings("ignore:Exception ignored in.*finalize:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]


def _lacks(method: str) -> bool:
    """Is a package that reads this method not there?"""
    try:
        return not all(version(library.partition(">=")[0]) for library in LIBRARIES_OF[method])
    except PackageNotFoundError:
        return True


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """(quantised, plain) for each method."""
    root = tmp_path_factory.mktemp("stored")
    return {method: packed_checkpoints.save(root / f"with-{method}", method) for method in METHODS}


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    if _lacks(request.param):
        pytest.skip(f"needs {' and '.join(LIBRARIES_OF[request.param])}")
    name: str = request.param
    return name


def settings(folder: Path, *changes: str) -> ModelConfig:
    fixed = [f"model.name={folder}", "model.context=512", "model.dtype=float32", "model.lora_rank=2"]
    return load_config("toy", [*fixed, *changes]).model


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, **versions: str) -> None:
    """Have packages seem installed."""
    for name, number in versions.items():
        info = folder / f"{name}-{number}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize("name", [*METHODS, "hqq"])
def test_checkpoints_that_come_quantised_say_what_they_need(
    name: str, folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    if name == "hqq":
        packed_checkpoints.say_quantised(folders["awq"][1], tmp_path, {"quant_method": name, "nbits": 4})
    elif not _lacks(name):
        pytest.skip("its library is installed")
    folder = tmp_path if name == "hqq" else folders[name][0]
    with pytest.raises(ModelError, match=name) as caught:
        load_model(settings(folder, "model.adapter=lora"))
    wanted = {"gptq": "'gptqmodel>=7'", "awq": "'gptqmodel>=7'", "compressed-tensors": "'compressed-tensors>=0.15'"}
    assert f"pip install {wanted.get(name)}" in caught.value.hint or name == "hqq"


@pytest.mark.parametrize("name", ["gptq", "awq"])
def test_weights_that_stay_packed_are_refused_what_they_cannot_do(
    name: str, folders: dict[str, tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, tmp_path, gptqmodel="7.7.0", optimum="2.3.0")
    folder, _ = folders[name]
    for change, said, hint in (
        ("model.adapter=none", "cannot learn", "set model.adapter=lora"),
        ("model.quantize=nf4", f"is quantised already .{name}.", "set model.quantize=none"),
        ("model.lora_dora=true", "peft has no DoRA", "set model.lora_dora=false"),
    ):
        adapter = [] if "adapter" in change else ["model.adapter=lora"]
        with pytest.raises(ConfigError, match=said) as caught:
            check_model(settings(folder, *adapter, change), PolicyConfig())
        assert caught.value.hint == hint
    check_model(settings(folder, "model.adapter=lora"), PolicyConfig())


def test_packages_that_are_too_old_count_as_missing(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, tmp_path, gptqmodel="6.0.3", optimum="1.24.0")
    with pytest.raises(ModelError, match=r"needs gptqmodel>=7\n"):
        check_model(settings(folders["gptq"][0], "model.adapter=lora"), PolicyConfig())


def test_bytes_of_stored_weights_follow_their_config() -> None:
    def each(**about: object) -> float | None:
        return stored_bytes({"quantization_config": about})

    # 4 bits, and for 128 of them a scale in 16 bits and a zero in 4: 0.5 + 2.5 / 128
    assert each(quant_method="gptq", bits=4, group_size=128) == pytest.approx(0.51953125)
    assert each(quant_method="awq", bits=4) == pytest.approx(0.51953125)
    assert each(quant_method="gptq", bits=8, group_size=-1) == 1.0
    assert each(quant_method="bitsandbytes", load_in_8bit=True) == 1.0
    assert each(quant_method="compressed-tensors") is None  # become ordinary weights
    assert stored_bytes({}) is None


def played(config: ModelConfig) -> tuple[PolicyModel, list[Episode]]:
    """Toy games played through the engine, with the key-value cache."""
    torch.manual_seed(0)
    lm, tokenizer = load_model(config)
    model = PolicyModel(lm).eval()
    check_drivable(model)
    seats = [games.make("toy") for _ in range(2)]
    return model, collect(
        ChoosePolicy(model, Encoder(tokenizer)), seats, tiny.tasks(2), Decoding(), seed="0", context=512
    )


def test_a_quantised_checkpoint_says_what_its_weights_say(method: str, folders: dict[str, tuple[Path, Path]]) -> None:
    """Against a model that holds the same numbers in float32, in a whole pass and played in parts."""
    quantised, plain = folders[method]
    ids = torch.arange(5, 45, device=default_device())[None]
    packed, ordinary = (load_base(settings(folder, "model.adapter=lora"))[0] for folder in (quantised, plain))
    with torch.inference_mode():
        wanted = ordinary(input_ids=ids).logits
        torch.testing.assert_close(packed(input_ids=ids).logits, wanted, atol=1e-4, rtol=1e-4)
    (first, played_packed), (second, played_plain) = (
        played(settings(folder, "model.adapter=lora")) for folder in (quantised, plain)
    )
    assert [one.segments for one in played_packed] == [one.segments for one in played_plain]
    assert replay(first, played_plain, 1.0).largest < 1e-3
    assert replay(second, played_packed, 1.0).largest < 1e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_after_play_are_those_of_ordinary_weights(
    method: str, dtype: str, folders: dict[str, tuple[Path, Path]]
) -> None:
    """Most kernels of gptqmodel pass none on, some of them only once the model has played."""
    gradients = []
    for folder in folders[method]:
        model, episodes = played(settings(folder, "model.adapter=lora", f"model.dtype={dtype}"))
        learned = sorted((n, p) for n, p in model.lm.named_parameters() if p.requires_grad)
        with torch.no_grad():  # else half of each adapter gets no gradient
            for number, (_, weight) in enumerate(learned):
                weight.copy_(torch.arange(weight.numel()).add(number).sin().view_as(weight) / 10)
        model.train()
        batch = collate(samples(episodes)).to(default_device())
        torch.log_softmax(model(*batch.inputs).logits_NC, -1)[:, 0].sum().backward()
        gradients.append({name: weight.grad for name, weight in learned})
    packed, ordinary = gradients
    assert packed.keys() == ordinary.keys() and len(packed) == 2 * 14
    for name, wanted in ordinary.items():
        distance = (packed[name] - wanted).norm() / wanted.norm()
        assert distance < (1e-3 if dtype == "float32" else 0.15), name


def test_memory_of_a_stored_checkpoint_is_counted(method: str, folders: dict[str, tuple[Path, Path]]) -> None:
    """Weights, and what autograd keeps of them where they are unpacked for a product."""
    counted, kept = [], []
    batch = collate(samples(tiny.rollouts(tiny.policy_model(), tiny.tasks(4))))
    for folder in folders[method]:
        config = settings(folder, "model.adapter=lora")
        lm, _ = load_model(config, device="cpu")
        own = {p.untyped_storage().data_ptr() for p in (*lm.parameters(), *lm.buffers())}
        frozen = [p for n, p in lm.named_parameters() if not p.requires_grad]
        frozen += [b for n, b in lm.named_buffers() if n.endswith(PARTS)]
        held = {p.data_ptr(): p.numel() * p.element_size() for p in frozen}
        assert weight_bytes(skeleton(config), config) == pytest.approx(sum(held.values()), rel=0.05)
        saved: dict[int, int] = {}

        def note(tensor: torch.Tensor, own: set[int] = own, saved: dict[int, int] = saved) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in own:
                saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            reading = PolicyModel(lm)(*batch.inputs)
        assert reading.logits_NC.requires_grad
        counted.append(activation_bytes(skeleton(config), config, batch.ids_BL.numel(), torch.float32))
        kept.append(sum(saved.values()))
    # the inputs of the first layer's queries, keys and values take no gradient, so nothing is kept for them
    first = 4 * (64 * 64 + 2 * 32 * 64) if method != "compressed-tensors" else 0
    assert counted[0] - counted[1] - (kept[0] - kept[1]) == first


def test_a_stored_checkpoint_is_trained_and_exported(
    method: str, folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    fast = ("model.adapter=lora", "model.lora_rank=4", "sft.epochs=1", "ppo.learning_rate=0.003", "ppo.iterations=2")
    config = tiny.config(folders[method][0], *fast, "ppo.warmup_iterations=0", "ppo.dev_every=1")
    for stage in ("demos", "sft", "ppo", "eval"):
        stages.run_stage(stage, config, tmp_path / "run", say=QUIET)  # type: ignore[arg-type]
    for what in ("adapter", "merged"):
        found = export_run(tmp_path / "run", what=what, to=tmp_path / what, say=QUIET)
        assert found["largest"] < 2e-3
        load_policy(tmp_path / what)
    assert "quantization_config" not in json.loads((tmp_path / "merged" / "config.json").read_text())


def test_all_weights_of_unpacked_ones_learn(folders: dict[str, tuple[Path, Path]]) -> None:
    if _lacks("compressed-tensors"):
        pytest.skip("needs compressed-tensors")
    quantised, plain = folders["compressed-tensors"]
    loaded, expected = (load_model(settings(folder))[0] for folder in (quantised, plain))
    for (name, weight), (_, wanted) in zip(loaded.named_parameters(), expected.named_parameters(), strict=True):
        assert weight.requires_grad and torch.equal(weight, wanted), name
    with pytest.raises(ConfigError, match="is quantised already"):
        check_model(settings(quantised, "model.quantize=nf4"), PolicyConfig())
