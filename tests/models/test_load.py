"""Loading: every architecture, adapter, number format and tokenizer that is promised, and what is refused."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Callable
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

import architectures
import pretended_gpu
import tiny
from grue import stages
from grue.cli import doctor
from grue.config import ModelConfig, PolicyConfig, load_config
from grue.errors import ConfigError, GrueError, ModelError
from grue.evaluate.probe import replay
from grue.models.adapter import lora_config
from grue.models.load import default_device, embedded_folder, load_base, load_model
from grue.models.memory import learned_weights
from grue.models.policy_model import PolicyModel
from grue.models.quantization import check_quantisable, compute_in, loading_options, ordinary_layers
from grue.models.skeleton import check_attention, check_model, skeleton
from grue.models.sources import EMBEDDED_POSITIONS
from grue.policy.choose import ChoosePolicy
from grue.policy.decision import Decoding
from grue.policy.drivable import check_drivable, gap_in_parts
from grue.progress import Progress
from grue.prompts.tokens import Encoder
from grue.rollout.collect import collect
from grue.types import Episode

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("architectures")
    return {name: architectures.save(root / name, name) for name in architectures.ALL}


def settings(folder: Path, *changes: str) -> ModelConfig:
    fixed = [f"model.name={folder}", f"model.context={architectures.CONTEXT}", "model.dtype=float32"]
    return load_config("toy", [*fixed, *changes]).model


def played(config: ModelConfig, count: int = 3) -> tuple[PolicyModel, list[Episode]]:
    """Toy games played by a model through the engine, with the key-value cache."""
    from grue import games

    lm, tokenizer = load_model(config)
    model = PolicyModel(lm).eval()
    policy = ChoosePolicy(model, Encoder(tokenizer))
    seats = [games.make("toy") for _ in range(2)]
    return model, collect(policy, seats, tiny.tasks(count), Decoding(), seed="0", context=config.context)


@pytest.mark.parametrize("name", architectures.ALL)
def test_what_is_played_with_a_cache_is_what_training_reads(name: str, folders: dict[str, Path]) -> None:
    model, episodes = played(settings(folders[name]))
    gap = replay(model, episodes, 1.0)
    assert gap.turns >= 10
    assert gap.largest < 1e-3


FORMATS = {
    "nf4": ("model.quantize=nf4",),
    "int8": ("model.quantize=int8",),
    "nf4-dora": ("model.quantize=nf4", "model.lora_dora=true"),
    "int8-dora": ("model.quantize=int8", "model.lora_dora=true"),
    "lora": ("model.adapter=lora",),
    "rslora": ("model.adapter=lora", "model.lora_rslora=true"),
}


RECURRENT = [
    *(("qwen3_5_pictures", "lora"), ("qwen3_5", "nf4"), ("lfm2", "nf4-dora"), ("falcon_h1", "lora")),
    *(("jamba", "rslora"), ("mamba", "lora")),
]


@pytest.mark.parametrize(("name", "form"), [*product(["llama", "gpt2", "falcon"], FORMATS), *RECURRENT])
@pytest.mark.filterwarnings("ignore:inner dimension .* is not aligned")  # of bitsandbytes on a GPU: 32 is tiny
def test_only_the_adapter_learns_and_it_moves_the_policy(name: str, form: str, folders: dict[str, Path]) -> None:
    """Also what quantised weights allow: play, a gradient through them, play again, and the same play without."""
    if "quantize" in FORMATS[form][0]:
        pytest.importorskip("bitsandbytes")
    config = settings(folders[name], *FORMATS[form], "model.lora_rank=2")
    torch.manual_seed(0)
    model, episodes = played(config, 2)
    limit = 1e-3 if config.quantize != "int8" else 0.3  # int8 rounds inputs by the batch that they stand in
    if config.quantize != "none":
        kinds = [type(module).__name__ for module in model.lm.modules()]
        assert any(kind in ("Linear4bit", "Linear8bitLt") for kind in kinds)
    before = replay(model, episodes, 1.0)
    assert before.mean < limit
    learned = {n: p for n, p in model.lm.named_parameters() if p.requires_grad}
    assert learned
    assert all("lora_" in n and p.dtype is torch.float32 for n, p in learned.items())
    frozen = {n: p.detach().clone() for n, p in model.lm.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.SGD(learned.values(), lr=1.0)
    device = next(model.parameters()).device
    ids, children = (torch.tensor([row], device=device) for row in (list(episodes[0].segments[0].ids[:40]), [5, 6]))
    place, row = torch.tensor([30], device=device), torch.tensor([0], device=device)
    for _ in range(2):  # the first step moves only the half of an adapter that starts at 0
        reading = model(ids, row, place, children, row, place)
        torch.log_softmax(reading.logits_NC, -1)[0, 0].backward()
        assert all(torch.isfinite(p.grad).all() for p in learned.values() if p.grad is not None)
        optimizer.step()
        optimizer.zero_grad()
    assert replay(model, episodes, 1.0).mean > 10 * before.mean
    for n, p in model.lm.named_parameters():
        if n in frozen:
            assert torch.equal(p, frozen[n]), n
    with model.lm.disable_adapter():
        assert replay(model, episodes, 1.0).mean == pytest.approx(before.mean, abs=limit)


def test_4_bit_weights_are_read_rightly_or_refused(tiny_folder: Path) -> None:
    """32 inputs: what bitsandbytes 0.50 reads wrongly on CPUs without a word."""
    pytest.importorskip("bitsandbytes")
    try:
        lm, _ = load_base(settings(tiny_folder, "model.quantize=nf4"))
    except ModelError as error:
        assert "4-bit weights of 32 inputs wrongly" in error.message  # noqa: PT017
        assert "int8" in error.hint  # noqa: PT017
    else:
        _assert_near(lm, load_base(settings(tiny_folder))[0], 0.13)


def test_it_is_said_how_much_of_a_mixture_is_quantised(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("bitsandbytes")
    load_base(settings(folders["llama"], "model.quantize=int8"))
    assert "are quantised" not in caplog.text
    load_base(settings(folders["gpt_oss"], "model.quantize=int8"))
    assert "only 11 % of the weights of" in caplog.text and "experts of a mixture" in caplog.text


@pytest.mark.parametrize(("form", "error"), [("nf4", 0.13), ("int8", 0.02)])
def test_quantised_weights_are_smaller_and_nearly_the_same(form: str, error: float, folders: dict[str, Path]) -> None:
    pytest.importorskip("bitsandbytes")
    full, _ = load_base(settings(folders["llama"]))
    lm, _ = load_base(settings(folders["llama"], f"model.quantize={form}"))
    assert lm.get_memory_footprint() < full.get_memory_footprint()
    _assert_near(lm, full, error)


def _assert_near(quantised: PreTrainedModel, full: PreTrainedModel, error: float) -> None:
    plain = dict(quantised.dequantize().named_parameters())  # type: ignore[operator]
    for name, expected in full.named_parameters():
        if name.endswith("_proj.weight"):
            distance = float(((plain[name].float() - expected).norm() / expected.norm()).detach())
            assert 0 < distance < error, name


def test_frozen_weights_are_held_in_the_format_of_products(folders: dict[str, Path]) -> None:
    lora, _ = load_model(settings(folders["qwen3"], "model.adapter=lora", "model.dtype=bfloat16"))
    assert {p.dtype for p in lora.parameters() if not p.requires_grad} == {torch.bfloat16}
    assert {p.dtype for p in lora.parameters() if p.requires_grad} == {torch.float32}
    full, _ = load_model(settings(folders["qwen3"], "model.dtype=bfloat16"))
    assert {p.dtype for p in full.parameters()} == {torch.float32}


def test_attention_that_is_planned_for_each_shape_is_switched_off(folders: dict[str, Path]) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    load_model(settings(folders["llama"]))
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_targets_are_those_that_were_named(folders: dict[str, Path]) -> None:
    lm, _ = load_model(settings(folders["llama"], "model.adapter=lora", "model.lora_targets=q_proj,v_proj"))
    adapted = {name.split(".lora_")[0].rpartition(".")[2] for name, p in lm.named_parameters() if p.requires_grad}
    assert adapted == {"q_proj", "v_proj"}
    load_model(settings(folders["llama"], "model.adapter=lora", "model.lora_targets=q_proj, v_proj,"))
    with pytest.raises(ConfigError, match="no module 'q_projj'") as caught:
        load_model(settings(folders["llama"], "model.adapter=lora", "model.lora_targets=q_projj"))
    assert "q_proj" in caught.value.hint


@pytest.mark.skipif(default_device() != "cpu", reason="on a GPU there are kernels to install")
def test_no_kernels_are_advised_where_there_are_none(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    from transformers.utils import logging as hf_logging

    hf_logging.get_logger().warning_once.cache_clear()  # another test may have been told
    logging.getLogger("transformers.integrations.hub_kernels").filters.clear()
    skeleton(settings(folders["falcon_h1"]))  # of which `grue doctor` makes no more
    played(settings(folders["qwen3_5"]), 1)
    hf_logging.get_logger("transformers.integrations.hub_kernels").warning("a kernel is broken")
    assert "falling back" not in caplog.text
    assert "a kernel is broken" in caplog.text


@pytest.mark.parametrize("name", architectures.ALL)
@torch.no_grad()
def test_logits_are_those_that_the_model_itself_gives(name: str, folders: dict[str, Path]) -> None:
    """Also where an architecture scales or caps what its output layer gives."""
    model = PolicyModel(load_model(settings(folders[name]))[0]).eval()
    device = default_device()
    ids = torch.tensor([[5, 9, 33, 7, 61]], device=device)
    wanted = model.lm(input_ids=ids, use_cache=False).logits[0]
    states = model.base_lm().get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]
    torch.testing.assert_close(model.vocabulary_logits(states), wanted, atol=1e-4, rtol=1e-4)
    children = torch.tensor([[3, 4, -1]] * 5, device=device)
    some = model.logits(states, children)
    torch.testing.assert_close(some[:, :2], wanted[:, 3:5], atol=1e-4, rtol=1e-4)
    assert bool((some[:, 2] == float("-inf")).all())


@pytest.mark.parametrize("name", ["gemma3_pictures", "qwen3_5_pictures"])
@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_what_reads_pictures_learns_nothing(adapter: str, name: str, folders: dict[str, Path]) -> None:
    model, episodes = played(settings(folders[name], f"model.adapter={adapter}"), 2)
    assert replay(model, episodes, 1.0).largest < 1e-3
    names = [name for name, p in model.lm.named_parameters() if p.requires_grad]
    assert names and not any("vision" in name or "visual" in name or "projector" in name for name in names)


def test_an_adapter_leaves_out_what_a_mamba_reads_past_it(folders: dict[str, Path]) -> None:
    lm, _ = load_model(settings(folders["falcon_h1"], "model.adapter=lora"))
    learned = {n.split(".lora_")[0].rpartition(".")[2] for n, p in lm.named_parameters() if p.requires_grad}
    assert {"in_proj", "q_proj", "o_proj", "down_proj"} <= learned
    assert "out_proj" not in learned
    lm, _ = load_model(settings(folders["qwen3_5"], "model.adapter=lora"))
    assert any("linear_attn.out_proj.lora_" in n for n, p in lm.named_parameters() if p.requires_grad)
    lm, _ = load_model(settings(folders["mamba"], "model.adapter=lora"))
    assert {n.split(".lora_")[0].rpartition(".")[2] for n, p in lm.named_parameters() if p.requires_grad} == {"in_proj"}

    load_model(settings(folders["qwen3_5"], "model.adapter=lora", "model.lora_targets=out_proj"))
    for name, target in (("falcon_h1", "out_proj"), ("mamba", "in_proj,x_proj")):
        with pytest.raises(ConfigError, match="bypassing any adapter"):
            load_model(settings(folders[name], "model.adapter=lora", f"model.lora_targets={target}"))


@pytest.mark.parametrize("form", ["nf4", "int8"])
def test_the_first_mamba_is_not_quantised(form: str, folders: dict[str, Path]) -> None:
    with pytest.raises(ModelError, match=f"mamba multiplies with weights that {form} would pack"):
        check_model(settings(folders["mamba"], f"model.quantize={form}"), PolicyConfig())
    with pytest.raises(ModelError, match=f"falcon_mamba multiplies with weights that {form} would pack"):
        check_quantisable("some/model", "falcon_mamba", form)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_4_bits_are_those_of_qlora_and_compute_in_the_format_that_is_asked_for(dtype: torch.dtype) -> None:
    pytest.importorskip("bitsandbytes")
    asked = loading_options(ModelConfig(quantize="nf4", adapter="lora"), dtype)["quantization_config"]
    assert asked.load_in_4bit and asked.bnb_4bit_quant_type == "nf4" and asked.bnb_4bit_use_double_quant
    assert asked.bnb_4bit_compute_dtype is dtype


@pytest.mark.parametrize("kind", ["aligned", "score"])
def test_trees_of_actions_are_refused_to_recurrent_layers_before_the_first_game(
    kind: str, folders: dict[str, Path]
) -> None:
    config = settings(folders["qwen3_5"])
    check_model(config, PolicyConfig(kind="choose"))
    with pytest.raises(ConfigError, match=f"policy.kind={kind} reads trees of actions, which qwen3_5_text") as caught:
        check_model(config, PolicyConfig(kind=kind))
    assert "policy.kind=choose" in caught.value.hint


@pytest.mark.parametrize("dora", ["true", "false"])
@pytest.mark.parametrize("name", ["deepseek", "phimoe", "gpt_oss", "mixtral"])
def test_an_adapter_leaves_experts_and_what_chooses_them_alone(name: str, dora: str, folders: dict[str, Path]) -> None:
    config = settings(folders[name], "model.adapter=lora", "model.lora_rank=2", f"model.lora_dora={dora}")
    model, episodes = played(config, 2)
    assert replay(model, episodes, 1.0).largest < 1e-3
    learned = [n for n, p in model.lm.named_parameters() if p.requires_grad]
    assert {n.split(".layers.")[1].split(".")[1] for n in learned} == {"self_attn"}


def test_attention_is_a_setting(folders: dict[str, Path]) -> None:
    lm, _ = load_model(settings(folders["llama"], "model.attention=eager"))
    assert lm.config._attn_implementation == "eager"
    if not torch.cuda.is_available():
        for flash in ("flash_attention_2", "flash_attention_4"):
            with pytest.raises(ConfigError, match=f"{flash} needs a GPU"):
                load_model(settings(folders["llama"], f"model.attention={flash}"))


@pytest.mark.skipif(find_spec("flash_attn") is not None, reason="flash attention is installed")
@pytest.mark.parametrize(
    ("flash", "package"), [("flash_attention_2", "flash-attn"), ("flash_attention_4", "flash-attn-4")]
)
def test_flash_attention_names_its_package(flash: str, package: str) -> None:
    with pretended_gpu.pretended(), pytest.raises(ConfigError, match=f"needs {package}, which is not") as caught:
        check_attention(flash)
    assert caught.value.hint == f"pip install {package}"


def test_flash_attention_is_told_apart_by_its_package_and_refused_on_old_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both packages have a module flash_attn."""
    info = tmp_path / "flash_attn_4-4.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flash_attn_4\nVersion: 4.0.0\n")
    (info / "top_level.txt").write_text("flash_attn\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pretended_gpu.pretended(8), pytest.raises(ConfigError, match=r"capability 9\.0; this one has 8\.0"):
        check_attention("flash_attention_4")
    with pretended_gpu.pretended(9):
        check_attention("flash_attention_4")
        if "flash-attn" not in packages_distributions().get("flash_attn", ()):
            with pytest.raises(ConfigError, match="needs flash-attn, which"):
                check_attention("flash_attention_2")


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_an_architecture_without_sdpa_is_loaded_without(name: str, folders: dict[str, Path]) -> None:
    config = settings(folders[name])
    assert config.attention == "sdpa"
    assert load_model(config)[0].config._attn_implementation == "eager"


def _bpe(**special: str) -> object:
    """The tests' tokenizer with other special tokens."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tiny.tokenizer().backend_tokenizer, **special)


TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"


@pytest.mark.parametrize("kind", ["no pad", "no special tokens", "bos", "template"])
def test_tokenizers_of_all_kinds_play(kind: str, tmp_path: Path) -> None:
    bos = tiny.tokenizer().bos_token
    special = {"bos": {"bos_token": bos}, "no pad": {"eos_token": tiny.tokenizer().eos_token}}.get(kind, {})
    tokenizer = _bpe(**special)
    if kind == "template":
        tokenizer.chat_template = TEMPLATE  # type: ignore[attr-defined]
    config = settings(architectures.save(tmp_path / "model", "llama", tokenizer))
    loaded = load_base(config)[1]
    assert loaded.pad_token is None
    assert (loaded.chat_template is not None) == (kind == "template")
    model, episodes = played(config, 2)
    starts_with_bos = episodes[0].segments[0].ids[0] == tiny.tokenizer().bos_token_id
    assert starts_with_bos == (kind == "bos")
    assert replay(model, episodes, 1.0).largest < 1e-3
    adapted, _ = load_model(config.model_copy(update={"adapter": "lora"}))
    assert any(p.requires_grad for p in adapted.parameters())


def test_a_tokenizer_without_newlines_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"take": 0, "key": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    with pytest.raises(ModelError, match="loses newlines"):
        load_model(settings(architectures.save(tmp_path / "model", "llama", tokenizer)))


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    from grue.pretrain.tokenizer import train_tokenizer

    larger = train_tokenizer([f"You see a key.\n> take key\n word{i} {i * 7919}" for i in range(400)], 900, ())
    assert len(larger) > len(tiny.tokenizer())
    with pytest.raises(ModelError, match="and the model has"):
        load_model(settings(architectures.save(tmp_path / "model", "llama", larger)))


def test_a_context_beyond_the_positions_of_the_embedded_base_is_refused_before_the_first_game(tmp_path: Path) -> None:
    shipped = json.loads((embedded_folder() / "config.json").read_text())
    assert shipped["max_position_embeddings"] == EMBEDDED_POSITIONS
    config = load_config("toy", [f"model.context={EMBEDDED_POSITIONS + 1}"])
    with pytest.raises(GrueError, match="knows 4096 positions"):
        stages.run_all(config, tmp_path / "run", say=Progress(quiet=True))
    assert not (tmp_path / "run").exists()


def test_a_context_beyond_the_positions_of_the_model_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(ModelError, match="knows 512 positions") as caught:
        load_model(settings(folders["gpt2"], "model.context=1024"))
    assert caught.value.hint == "set model.context=512"


def longrope(folder: Path) -> Path:
    """Phi 3, which rotates keys otherwise where a text is longer than half of the positions that it knows."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(architectures.phi3()).eval().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def test_a_context_in_which_the_rotation_of_keys_changes_is_refused(tmp_path: Path) -> None:
    half = architectures.CONTEXT // 2
    config = settings(longrope(tmp_path / "phi3"), f"model.context={half}")
    model = PolicyModel(load_model(config)[0]).eval()
    texts = [[7 * place % 300 for place in range(length)] for length in (30, half)]
    assert gap_in_parts(model, texts, [20, half - 10]) < 1e-3
    assert gap_in_parts(model, [texts[0], [*texts[1], 5]], [20, half - 10]) > 0.1
    with pytest.raises(ModelError, match=f"longer than {half} tokens") as caught:
        load_model(settings(tmp_path / "phi3", f"model.context={half + 1}"))
    assert caught.value.hint == f"set model.context={half}"


def test_a_rotation_that_changes_in_some_layers_is_refused_too(tmp_path: Path) -> None:
    from transformers import Gemma3TextConfig

    rope = architectures.phi3().rope_parameters
    kinds = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}, "full_attention": rope}
    config = Gemma3TextConfig(**{**architectures.gemma3().to_dict(), "head_dim": 16, "rope_parameters": kinds})
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "m")
    tiny.tokenizer().save_pretrained(tmp_path / "m")
    load_model(settings(tmp_path / "m", "model.context=256"))
    with pytest.raises(ModelError, match="longer than 256 tokens"):
        load_model(settings(tmp_path / "m"))


def test_dynamic_frequencies_stay_as_they_are_up_to_the_positions_of_the_model(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    folder = _with_config(folders["llama"], tmp_path / "m", rope_parameters=rope)
    model = PolicyModel(load_model(settings(folder))[0]).eval()
    texts = [[7 * place % 300 for place in range(length)] for length in (30, architectures.CONTEXT)]
    assert gap_in_parts(model, texts, [20, 400]) < 1e-3
    with pytest.raises(ModelError, match="knows 512 positions"):
        load_model(settings(folder, "model.context=513"))


def _with_config(folder: Path, target: Path, **changes: object) -> Path:
    import shutil

    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **changes}))
    return target


def test_a_checkpoint_in_4_bits_is_loaded_as_it_is_and_only_with_an_adapter(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes")
    lm, tokenizer = load_base(settings(folders["llama"], "model.quantize=nf4"))
    lm.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    with pytest.raises(ConfigError, match="cannot learn"):
        load_model(settings(tmp_path / "m"))
    with pytest.raises(ConfigError, match="quantised already"):
        load_model(settings(tmp_path / "m", "model.quantize=int8"))
    model, episodes = played(settings(tmp_path / "m", "model.adapter=lora"), 2)
    assert replay(model, episodes, 1.0).largest < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_in_4_bits_computes_in_the_format_that_is_asked_for(
    dtype: torch.dtype, folders: dict[str, Path], tmp_path: Path
) -> None:
    """transformers left it in the one that it was stored in: training and play differed by its rounding."""
    pytest.importorskip("bitsandbytes")
    lm, tokenizer = load_base(settings(folders["llama"], "model.quantize=nf4"), dtype=torch.bfloat16)
    lm.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    wanted = str(dtype).removeprefix("torch.")
    model, _ = load_model(settings(tmp_path / "m", "model.adapter=lora", f"model.dtype={wanted}"))
    plain = {p.dtype for n, p in model.named_parameters() if "lora_" not in n and p.is_floating_point()}
    assert plain == {dtype}
    assert {layer.compute_dtype for layer in model.modules() if hasattr(layer, "compute_dtype")} == {dtype}
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    assert head.weight is embeddings.weight or not model.config.tie_word_embeddings


def test_packed_weights_are_not_cast_whatever_they_are_stored_in() -> None:
    """Some checkpoints hold their 4 bits in bfloat16, for FSDP."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4)).to(torch.bfloat16)
    model[0].weight.quant_state = object()
    compute_in(model, torch.float32)
    assert model[0].weight.dtype is torch.bfloat16 and model[1].weight.dtype is torch.float32


def test_falcon_has_its_own_layers_back() -> None:
    from transformers.models.falcon import modeling_falcon

    own = modeling_falcon.FalconLinear
    with ordinary_layers("falcon", "bitsandbytes"):
        assert modeling_falcon.FalconLinear is nn.Linear
    assert modeling_falcon.FalconLinear is own is not nn.Linear


def test_latent_attention_is_read_in_8_bits(folders: dict[str, Path]) -> None:
    """Its inputs have four dimensions, which bitsandbytes cannot take."""
    pytest.importorskip("bitsandbytes")
    model, episodes = played(settings(folders["deepseek"], "model.quantize=int8"), 2)
    assert replay(model, episodes, 1.0).mean < 0.3


CODE = {
    "hub kernel": {"_attn_implementation_internal": "someone/kernel"},
    "attention by a hub name": {"attn_implementation": "someone/kernel"},
    "nested trust": {"inner": {"deeper": {"trust_remote_code": True}}},
}


@pytest.mark.parametrize("kind", CODE)
def test_a_config_that_asks_to_run_code_is_refused(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="could run code"):
        load_model(settings(_with_config(folders["llama"], tmp_path / "m", **CODE[kind])))


def test_code_beside_the_weights_is_never_run(folders: dict[str, Path], tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    classes = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": ["evil.T", None]}
    folder = _with_config(folders["llama"], tmp_path / "m", auto_map=classes, model_type="evil")
    (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w')\n")
    with pytest.raises(ModelError):
        load_model(settings(folder))
    assert not canary.exists()


def _changed(folder: Path, to: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Path:
    """A copy of a model with other weights."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, to)
    save_file(change(load_file(folder / "model.safetensors")), to / "model.safetensors", metadata={"format": "pt"})
    return to


def test_missing_weights_are_not_made_up(folders: dict[str, Path], tmp_path: Path) -> None:
    half = _changed(
        folders["llama"], tmp_path / "half", lambda w: {n: t for n, t in w.items() if ".layers.1." not in n}
    )
    with pytest.raises(
        ModelError, match=r"^9 of the weights of .* missing, .*: model\.layers\.1\.input_layernorm\.weight, "
    ) as caught:
        load_model(settings(half))
    assert "files are incomplete" in caught.value.hint


def test_weights_that_are_not_asked_for_are_named(
    folders: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_model(settings(folders["llama"]))
    assert not caplog.records
    folder = _with_config(folders["llama"], tmp_path / "shallow", num_hidden_layers=1)
    load_model(settings(folder))
    assert "9 weights of" in caplog.text and "model.layers.1.input_layernorm.weight" in caplog.text


def test_weights_that_are_no_numbers_are_found_out(folders: dict[str, Path], tmp_path: Path) -> None:
    broken = _changed(
        folders["llama"], tmp_path / "nan", lambda w: {n: t * math.nan if "norm" in n else t for n, t in w.items()}
    )
    with pytest.raises(ModelError, match="logits that are not finite"):
        check_drivable(PolicyModel(load_model(settings(broken))[0]))


@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_an_adapter_beside_the_weights_is_not_silently_replaced(
    adapter: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    lm, _ = load_model(settings(folders["llama"], "model.adapter=lora"))
    folder = shutil.copytree(folders["llama"], tmp_path / "both")
    lm.save_pretrained(folder)
    assert (folder / "adapter_config.json").exists()
    with pytest.raises(ModelError, match=r"adapter.* beside its weights"):
        load_model(settings(folder, f"model.adapter={adapter}"))


def test_local_layers_by_place_in_the_cache_are_refused(tmp_path: Path) -> None:
    from transformers import GPTNeoConfig

    shape = {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}
    config = GPTNeoConfig(**shape, vocab_size=len(tiny.tokenizer()), max_position_embeddings=512, window_size=16)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="gpt_neo decides what its layers see by place in the cache"):
        check_model(settings(tmp_path), load_config("toy").policy)


def test_layers_that_cannot_compute_again_are_refused_before_the_first_game(tmp_path: Path) -> None:
    from transformers import JetMoeConfig

    config = JetMoeConfig(
        vocab_size=len(tiny.tokenizer()), hidden_size=64, num_hidden_layers=1, num_key_value_heads=2, kv_channels=16,
        intermediate_size=64, num_local_experts=2, max_position_embeddings=512,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="cannot recompute its activations"):
        check_model(settings(tmp_path, "model.gradient_checkpointing=true"), load_config("toy").policy)


def test_damaged_weights_are_one_error(folders: dict[str, Path], tmp_path: Path) -> None:
    other = _changed(folders["llama"], tmp_path / "other", lambda w: {n: t[..., :8].contiguous() for n, t in w.items()})
    with pytest.raises(ModelError, match=r"of other shapes .*: model\.embed_tokens\.weight is \(\d+, 8\), not \(\d+, "):
        load_model(settings(other))
    (other / "model.safetensors").write_bytes((folders["llama"] / "model.safetensors").read_bytes()[:5000])
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged or incomplete"):
        load_model(settings(other))


def test_an_empty_tokenizer_is_not_made_where_there_is_none(folders: dict[str, Path], tmp_path: Path) -> None:
    """For Llama transformers fails without files, for GPT-2 it makes one of no words."""
    bare = shutil.copytree(folders["gpt2"], tmp_path / "m", ignore=shutil.ignore_patterns("*token*"))
    with pytest.raises(ModelError, match="has no tokenizer"):
        check_model(settings(bare), load_config("toy").policy)


def _in_shards(folder: Path, to: Path) -> list[Path]:
    """A copy of a model whose weights are in several files; those files."""
    lm, tokenizer = load_base(settings(folder))
    lm.save_pretrained(to, max_shard_size="20KB")
    tokenizer.save_pretrained(to)
    return sorted(to.glob("*.safetensors"))


def test_damaged_or_missing_weights_are_found_and_named_before_the_first_game(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    shards = _in_shards(folders["llama"], tmp_path / "m")
    config = load_config("toy", [f"model.name={tmp_path / 'm'}", f"model.context={architectures.CONTEXT}"])
    assert len(shards) > 1
    check_model(config.model, config.policy)
    whole = shards[1].read_bytes()
    for broken in (whole[:-4], whole[:20], b"", b"version https://git-lfs.github.com/spec/v1"):
        shards[1].write_bytes(broken)
        with pytest.raises(ModelError, match=f"{shards[1].name} is damaged or incomplete") as caught:
            stages.run_all(config, tmp_path / "run", say=Progress(quiet=True))
        assert caught.value.hint.startswith("copy or download it again")
    shards[1].unlink()
    with pytest.raises(ModelError, match=f"{shards[1].name} is missing"):
        stages.run_all(config, tmp_path / "run", say=Progress(quiet=True))
    (tmp_path / "m" / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ModelError, match=r"index\.json is damaged"):
        check_model(config.model, config.policy)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ("q_porj", "did you mean q_proj"),
        ("q_proj,lm_head", "the output layer, or what shares its weights, cannot have an adapter"),
        ("embed_tokens,q_proj", "the output layer, or what shares its weights, cannot have an adapter"),
        (",", "names no module; hint: say all-linear, or some of down_proj, gate_proj,"),
        ("self_attn", "it may have down_proj, gate_proj, k_proj"),
        ("input_layernorm,q_proj", "hint: it may have down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj,"),
    ],
)
def test_what_cannot_have_an_adapter_is_refused(targets: str, said: str, folders: dict[str, Path]) -> None:
    config = settings(folders["llama"], "model.adapter=lora", f"model.lora_targets={targets}")
    with pytest.raises(ConfigError) as caught:
        load_model(config)
    assert said in f"{caught.value.message}; hint: {caught.value.hint}"


def test_what_peft_cannot_import_is_one_error(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> None:
        raise ImportError("Found an incompatible version of torchao\nmore")

    monkeypatch.setattr("peft.get_peft_model", broken)
    with pytest.raises(ConfigError) as caught:
        load_model(settings(folders["llama"], "model.adapter=lora"))
    assert caught.value.message == "peft makes no adapter: Found an incompatible version of torchao"


def test_what_chooses_experts_may_have_an_adapter_if_it_is_named(folders: dict[str, Path]) -> None:
    config = settings(folders["mixtral"], "model.adapter=lora", "model.lora_targets=gate,q_proj")
    lm, _ = load_model(config)
    assert any(".gate." in name for name, p in lm.named_parameters() if p.requires_grad)
    assert learned_weights(skeleton(config), config) == sum(p.numel() for p in lm.parameters() if p.requires_grad)


@pytest.mark.parametrize("targets", ["down_proj", "q_b_proj,gate_proj,up_proj,down_proj"])
def test_a_layer_that_peft_takes_for_experts_is_refused_before_games(targets: str, folders: dict[str, Path]) -> None:
    config = settings(folders["deepseek"], "model.adapter=lora", f"model.lora_targets={targets}")
    with pytest.raises(ConfigError, match=r"peft takes (down|gate)_proj for a part of the experts") as caught:
        check_model(config, PolicyConfig())
    assert caught.value.hint.startswith("it may have kv_a_proj_with_mqa, kv_b_proj, o_proj, q_a_proj, q_b_proj, or")


def test_all_linear_leaves_out_a_gate_that_is_named_as_experts_are(tmp_path: Path) -> None:
    from transformers import AfmoeConfig, AutoModelForCausalLM

    experts = {"num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 1, "moe_intermediate_size": 64}
    shape = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    made = AfmoeConfig(**shape, **experts, num_attention_heads=4, num_key_value_heads=2, num_dense_layers=1)
    AutoModelForCausalLM.from_config(made).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    config = settings(tmp_path, "model.adapter=lora")
    check_model(config, PolicyConfig())
    lm, _ = load_model(config)
    learned = {n.split(".lora_")[0].rpartition(".")[2] for n, p in lm.named_parameters() if p.requires_grad}
    assert learned == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert learned_weights(skeleton(config), config) == sum(p.numel() for p in lm.parameters() if p.requires_grad)


def test_experts_in_one_layer_leave_the_others_their_adapters(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, NemotronHConfig

    kinds = ["linear_attention", "moe", "full_attention", "mlp"]  # all of them are called mixer
    shape = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "num_attention_heads": 4}
    states = {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1, "num_key_value_heads": 2}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    made = NemotronHConfig(
        **shape, **states, **experts, moe_shared_expert_intermediate_size=64, layers_block_type=kinds
    )
    AutoModelForCausalLM.from_config(made).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    lm, _ = load_model(settings(tmp_path, "model.adapter=lora"))
    adapted = {n.split(".lora_")[0].partition("layers.")[2] for n, p in lm.named_parameters() if p.requires_grad}
    attention = {f"2.mixer.{name}_proj" for name in "qkvo"}
    assert adapted == {"0.mixer.in_proj", *attention, "3.mixer.up_proj", "3.mixer.down_proj"}


def test_named_layers_of_a_vision_tower_get_no_adapter(folders: dict[str, Path]) -> None:
    config = settings(folders["gemma3_pictures"], "model.adapter=lora", "model.lora_targets=q_proj")
    lm, _ = load_model(config)
    learned = [n for n, p in lm.named_parameters() if p.requires_grad]
    assert learned and not any("vision" in name for name in learned)
    assert learned_weights(skeleton(config), config) == sum(p.numel() for p in lm.parameters() if p.requires_grad)
    config = settings(folders["gemma3_pictures"], "model.adapter=lora", "model.lora_targets=fc1")
    with pytest.raises(ConfigError, match="fc1 reads no text, and is not trained") as caught:
        check_model(config, PolicyConfig())
    assert caught.value.hint.startswith("it may have down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj, or")


def test_a_model_of_another_kind_keeps_its_own_message(tmp_path: Path) -> None:
    from transformers import T5Config

    T5Config(vocab_size=320).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"^t5 is an encoder with a decoder") as caught:
        check_model(settings(tmp_path), PolicyConfig())
    assert "Llama" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_key_value_heads": 2.0}, "'num_key_value_heads' .*2.0"),
        ({"dtype": "fp8"}, "fp8"),
        ({"hidden_act": "nope"}, "it knows no 'nope'"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "linear.*factor"),
        ({"pad_token_id": 99_999}, "."),
        ({"num_attention_heads": 0, "head_dim": None}, "."),
    ],
)
def test_a_config_that_transformers_refuses_is_one_line(
    change: dict[str, Any], said: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["llama"], tmp_path / "m")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change), encoding="utf-8")
    with pytest.raises(ModelError, match=f"refuses its config.json: .*{said}") as caught:
        check_model(settings(folder), PolicyConfig())
    assert caught.value.hint.startswith("is that value right?")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("model.adapter=lora", "model.lora_targets=q_porj"), "did you mean q_proj"),
        (("model.adapter=lora", "model.lora_targets=lm_head"), "shares its weights, cannot have an adapter"),
        (("model.adapter=lora", "model.lora_targets=self_attn"), "LlamaAttention, which cannot have an adapter"),
        (("model.adapter=lora", "model.lora_targets=q_proj,norm"), "LlamaRMSNorm, which cannot have an adapter"),
        (("policy.template=chat",), "has no chat template"),
        (("model.context=4096",), "knows 512 positions"),
        (("model.attention=flash_attention_2", "policy.kind=score"), "set model.attention=sdpa"),
        (("model.attention=flash_attention_2", "policy.kind=aligned"), "set model.attention=sdpa"),
    ],
)
def test_a_run_is_refused_before_its_first_game(given: tuple[str, ...], said: str, folders: dict[str, Path]) -> None:
    name, settings = str(folders["llama"]), [f"model.context={architectures.CONTEXT}", *given]
    config = load_config("toy", [f"model.name={name}", *settings])
    for check in (lambda: check_model(config.model, config.policy), lambda: doctor.check_model(config)):
        with pytest.raises(GrueError) as caught:
            check()
        assert said in f"{caught.value.message}; {caught.value.hint}"


def test_a_token_that_only_the_tokenizer_knows_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = shutil.copytree(folders["llama"], tmp_path / "bos")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"bos_token": "<begin>"})
    tokenizer.save_pretrained(folder)
    config = load_config("toy", [f"model.name={folder}", f"model.context={architectures.CONTEXT}"])
    with pytest.raises(ModelError, match=r"have the token '<begin>' \(\d+\), and the model has \d+ embeddings"):
        check_model(config.model, config.policy)


def test_a_word_that_only_the_tokenizer_knows_is_refused_before_a_game_says_it(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    folder = shutil.copytree(folders["llama"], tmp_path / "word")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<never-text>"])  # which no text is read as
    tokenizer.save_pretrained(folder)
    config = load_config("toy", [f"model.name={folder}", f"model.context={architectures.CONTEXT}"])
    check_model(config.model, config.policy)
    tokenizer.add_tokens(["cellar"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(ModelError, match=r"a text .* may have the token 'cellar' \(\d+\)"):
        check_model(config.model, config.policy)


def test_what_stands_where_a_model_should_be_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no folder '\./nothere'"):
        load_model(settings(Path("./nothere")).model_copy(update={"name": "./nothere"}))
    bare = shutil.copytree(folders["llama"], tmp_path / "bare", ignore=shutil.ignore_patterns("*token*"))
    with pytest.raises(ModelError, match="bare has no tokenizer") as caught:
        load_model(settings(bare))
    assert f"tokenizer.save_pretrained('{bare}')" in caught.value.hint
    with pytest.raises(ModelError, match=r"config\.json is a file; name its folder"):
        load_model(settings(folders["llama"] / "config.json"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/stages.json").write_text("{}")
    with pytest.raises(ModelError) as caught:
        load_model(settings(tmp_path / "run"))
    assert "grue export RUN --what merged" in caught.value.hint


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        ("pytorch_model.bin", "pickled weights are refused"),
        ("m.gguf", "GGUF files are not read"),
        ("m.txt", "download"),
    ],
)
def test_weights_in_other_formats_are_refused_before_the_first_game(
    file: str, hint: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["llama"], tmp_path / "m")
    (folder / "model.safetensors").rename(folder / file)
    for read in (
        lambda: check_model(settings(folder), load_config("toy").policy),
        lambda: load_model(settings(folder)),
    ):
        with pytest.raises(ModelError, match=r"has no weights: neither model\.safetensors nor") as caught:
            read()
        assert hint in caught.value.hint


@pytest.mark.parametrize("name", ["/nowhere", ".", "a b"])
def test_what_is_no_model_is_one_error(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(GrueError) as caught:
        load_model(settings(Path(name)))
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("content", ["[1, 2]", "[" * 100_000, '"text"'])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_files_that_hold_something_else_are_one_error(
    file: str, content: str, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    (folder / file).write_text(content)
    with pytest.raises(ModelError):
        load_model(settings(folder))


def test_settings_of_an_adapter_reach_it() -> None:
    changes = ("rank=4", "alpha=24", "dropout=0.25", "dora=true", "rslora=true")
    config = tiny.config(Path("none"), "model.adapter=lora", *(f"model.lora_{change}" for change in changes))
    found = lora_config(tiny.llama(), config.model)
    assert (found.r, found.lora_alpha, found.lora_dropout) == (4, 24, 0.25)
    assert found.use_dora and found.use_rslora
