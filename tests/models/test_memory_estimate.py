"""The estimate of memory against what is really allocated, and the message when there is none left."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from pathlib import Path

import pass_peak
import pytest
import torch
from vocabulary_peak import VOCABULARY

import architectures
import tiny
from grue.config import Config, load_config, override
from grue.engine.engine import Engine
from grue.models.adapter import matrices
from grue.models.load import default_device, load_base, load_model
from grue.models.memory import (
    activation_bytes,
    cached_numbers,
    estimate,
    learned_weights,
    vocabulary_bytes,
    weight_bytes,
)
from grue.models.out_of_memory import OutOfMemoryError, explained_memory, hints, is_out_of_memory
from grue.models.policy_model import PolicyModel
from grue.models.reordered import reorders
from grue.models.scores import CHUNK
from grue.models.skeleton import skeleton
from grue.parallel import ALONE, Processes
from grue.rollout.pack import collate, samples
from pretended_gpu import pretended


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("architectures")
    return {name: architectures.save(root / name, name) for name in architectures.ALL}


def settings(folder: Path, *changes: str) -> Config:
    fixed = [f"model.name={folder}", f"model.context={architectures.CONTEXT}", "model.dtype=float32"]
    return load_config("toy", [*fixed, *changes])


@pytest.mark.parametrize(
    "changes",
    [(), ("model.adapter=lora",), ("model.adapter=lora", "model.lora_dora=true", "model.lora_rank=3")],
    ids=["full", "lora", "dora"],
)
@pytest.mark.parametrize("name", architectures.ALL)
def test_weights_are_counted_exactly(name: str, changes: tuple[str, ...], folders: dict[str, Path]) -> None:
    config = settings(folders[name], *changes).model
    empty = skeleton(config)
    assert all(p.device.type == "meta" for p in empty.parameters())
    lm, _ = load_model(config)
    assert learned_weights(empty, config) == sum(p.numel() for p in lm.parameters() if p.requires_grad)
    frozen = sum(p.numel() * p.element_size() for p in lm.parameters() if not p.requires_grad)
    if changes:
        assert weight_bytes(empty, config) == frozen
    else:
        assert weight_bytes(empty, config) == sum(p.numel() * 4 for p in lm.parameters())


@pytest.mark.parametrize("dora", ["false", "true"])
def test_adapters_of_embeddings_are_counted(dora: str, folders: dict[str, Path]) -> None:
    targets = "model.lora_targets=embed_tokens,q_proj"
    config = settings(folders["qwen3"], "model.adapter=lora", targets, f"model.lora_dora={dora}").model
    lm, _ = load_model(config)
    assert learned_weights(skeleton(config), config) == sum(p.numel() for p in lm.parameters() if p.requires_grad)


@pytest.mark.parametrize("form", ["nf4", "int8"])
def test_quantised_weights_are_counted_nearly(form: str, folders: dict[str, Path]) -> None:
    pytest.importorskip("bitsandbytes")
    config = settings(folders["llama"], f"model.quantize={form}").model
    lm, _ = load_model(config)
    frozen = sum(p.numel() * p.element_size() for p in lm.parameters() if not p.requires_grad)
    # scales of blocks are no parameters; they are a few per cent
    assert weight_bytes(skeleton(config), config) == pytest.approx(frozen, rel=0.05)


@pytest.mark.parametrize("name", architectures.ALL)
def test_the_cache_is_counted_exactly(name: str, folders: dict[str, Path]) -> None:
    lm, _ = load_model(settings(folders[name]).model)
    engine = Engine(lm, 3, 40)
    engine.feed([0, 1, 2], [[5] * 40] * 3)
    layers = [layer for layer in engine._cache.layers if getattr(layer, "keys", None) is not None]
    held = sum(layer.keys.numel() + layer.values.numel() for layer in layers)
    columns = layers[0].keys.shape[2] if layers else 0
    states = [states for layer in engine._states for states in layer._kept.values()]
    places, state = cached_numbers(skeleton(settings(folders[name]).model))
    assert held == 3 * columns * places
    assert sum(map(torch.numel, states)) == 3 * state
    assert bool(states) == (name in architectures.RECURRENT or name == "qwen3_5_pictures")


def test_a_cache_without_keys_and_one_that_cannot_be_filled_without_data_are_counted() -> None:
    """Layers of one kind only, and experts that are chosen by numbers that are not there."""
    from transformers import AutoModelForCausalLM, GraniteMoeHybridConfig, JetMoeConfig

    states = architectures.granite_hybrid().to_dict() | {"layer_types": ["linear_attention"] * 2}
    jet = JetMoeConfig(vocab_size=64, hidden_size=32, num_hidden_layers=3, num_key_value_heads=2, intermediate_size=16)
    with torch.device("meta"):
        all_states = AutoModelForCausalLM.from_config(GraniteMoeHybridConfig(**states))
        experts = AutoModelForCausalLM.from_config(jet)
    places, state = cached_numbers(all_states)
    assert places == 0 and state > 0
    assert cached_numbers(experts) == (3 * 2 * 2 * jet.kv_channels, 0)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "phi", *architectures.RECURRENT])
@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_activations_are_counted_roughly(name: str, adapter: str, folders: dict[str, Path]) -> None:
    """Against everything that autograd keeps in a real pass."""
    config = settings(folders[name], f"model.adapter={adapter}", "model.dtype=float32").model
    lm, _ = load_model(config, device="cpu")
    model = PolicyModel(lm)
    batch = collate(samples(tiny.rollouts(tiny.policy_model(), tiny.tasks(4))))
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        reading = model(*batch.inputs)
    counted = activation_bytes(skeleton(config), config, batch.ids_BL.numel(), torch.float32)
    assert 0.7 * sum(kept.values()) < counted < 2.0 * sum(kept.values())
    del reading
    gc.collect()


@pytest.mark.parametrize(
    ("what", "kind", "count"),
    [
        ("learning", "write", 256),
        pytest.param("sft", "write", 256, marks=pytest.mark.slow),
        pytest.param("trees", "score", CHUNK, marks=pytest.mark.slow),
        pytest.param("playing", "write", 128, marks=pytest.mark.slow),
    ],
)
def test_what_is_chosen_from_a_large_vocabulary_is_counted(what: str, kind: str, count: int) -> None:
    """Against the peak of a process that does it: some hundred MB, which no other part of the estimate holds."""
    program = [sys.executable, str(Path(__file__).with_name("vocabulary_peak.py")), what, str(count)]
    measured = int(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
    config = load_config("toy", [f"policy.kind={kind}", "ppo.kl_coef=0", "model.context=256", "game.limit=12"])
    play, learn = vocabulary_bytes(config, VOCABULARY, tokens=256, slots=count)
    counted = play if what == "playing" else learn
    assert 0.5 * counted < measured < 1.1 * counted


@pytest.mark.parametrize("name", ["llama", "falcon", "gemma2"])
def test_a_pass_that_reads_the_texts_of_all_games_is_counted(name: str, tmp_path: Path) -> None:
    """Against the peak of a process that does it. Gemma 2 attends eagerly, which grows with the square of a text."""
    games, tokens = 32, 512
    program = [sys.executable, str(Path(__file__).with_name("pass_peak.py")), name, str(games), str(tokens)]
    measured = int(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
    pass_peak.model(name).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    config = load_config("toy", [f"model.name={tmp_path}", f"model.context={tokens}", "model.dtype=float32"])
    counted = estimate(override(config, [f"ppo.slots={games}", f"eval.slots={games}"])).playing
    assert 0.5 * sum(counted.values()) < measured < 1.1 * sum(counted.values())


def test_a_segment_is_read_whole_and_with_its_trees(folders: dict[str, Path]) -> None:
    """However few tokens a micro-batch may have."""

    def activations(kind: str, tokens: int) -> int:
        sizes = [f"sft.micro_tokens={tokens}", f"ppo.micro_tokens={tokens}"]
        return estimate(settings(folders["llama"], f"policy.kind={kind}", *sizes)).learning["activations"]

    assert activations("choose", 64) == activations("choose", architectures.CONTEXT)
    assert activations("score", 64) == activations("choose", 2 * architectures.CONTEXT)
    assert activations("choose", 64) < activations("aligned", 64) < activations("score", 64)


def test_the_vocabulary_is_part_of_the_estimate(folders: dict[str, Path]) -> None:
    rows, slots = len(tiny.tokenizer()), 64
    fixed = [f"ppo.slots={slots}", f"eval.slots={slots}", "sft.micro_tokens=1024", "ppo.micro_tokens=1024"]
    fixed += ["game.limit=5", "policy.reply_tokens=4", "policy.thought_tokens=8", "ppo.kl_coef=0"]
    for kind, nodes in (("write", 2 * 5 * 4), ("think", 2 * 5 * 8), ("choose", 0)):  # two segments of 512 tokens
        found = estimate(settings(folders["llama"], *fixed, f"policy.kind={kind}"))
        assert found.learning["vocabulary"] == 24 * nodes * rows
        assert bool(found.playing["vocabulary in play"]) == bool(nodes)
    few = ["ppo.episodes_per_iteration=12", "ppo.minibatches=4"]  # of three games each
    kept = estimate(settings(folders["llama"], *fixed, *few, "policy.kind=write", "ppo.kl_coef=0.1"))
    assert kept.learning["vocabulary"] == 40 * 40 * rows
    assert kept.learning["reference"] == 4 * (3 * 5 * 4) * rows


def test_savers_lower_the_estimate(folders: dict[str, Path]) -> None:
    totals = {}
    few = ("ppo.slots=4", "eval.slots=4")
    for change in ("", "model.gradient_checkpointing=true", "ppo.micro_tokens=512", "model.optimizer=adamw-8bit"):
        given = ["sft.micro_tokens=512", change] if "micro" in change else [change] if change else []
        totals[change] = estimate(settings(folders["qwen3"], *few, *given)).total
    assert all(total < totals[""] for change, total in totals.items() if change)
    wide = estimate(settings(folders["qwen3"], "ppo.slots=4096", "ppo.episodes_per_iteration=4096"))
    assert wide.playing["cache"] == 128 * estimate(settings(folders["qwen3"])).playing["cache"]
    # the parts that are named make up the total: the cache of so many games is the larger of the two
    said = re.search(
        r"about ([\d.]+) of .* GiB: (.*), and the larger of play \((.*)\) and learning \((.*)\)$", wide.line()
    )
    assert said and "cache" in said[3] and "activations" in said[4]
    parts = [float(part.split()[-1]) for part in f"{said[2]}, {said[3]}".split(", ")]
    assert sum(parts) == pytest.approx(float(said[1]), abs=0.1 + 0.01 * len(parts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_what_is_held_beside_the_weights_is_that_of_the_settings(
    adapter: str, dtype: torch.dtype, folders: dict[str, Path]
) -> None:
    changes = (f"model.adapter={adapter}", f"model.dtype={str(dtype).removeprefix('torch.')}")
    config = settings(folders["qwen3"], *changes, "model.optimizer=paged-adamw-8bit")
    if adapter == "none" and dtype is torch.bfloat16:
        config = override(config, ["model.optimizer=adamw"])
    found, model = estimate(config), PolicyModel(load_model(config.model)[0])
    learned = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert found.learning["gradients"] == 4 * learned
    assert found.always.get("adapters", 0) == (4 * learned if adapter == "lora" else 0)
    assert found.always["optimiser"] == (8 if config.model.optimizer == "adamw" else 2) * learned
    playing = 0
    if adapter == "none" and dtype is torch.bfloat16:  # plays in it; on a CPU its matrices are laid out once more
        linear = sum(m.weight.numel() for m in model.lm.get_decoder().modules() if isinstance(m, torch.nn.Linear))
        playing = 2 * (model.lm.num_parameters() + reorders(default_device(), dtype) * linear)
    assert found.always["copies"] == 8 * learned + playing  # to start from again, and as PPO's reference


def test_the_cache_is_that_of_all_games_while_it_grows(folders: dict[str, Path]) -> None:
    config = settings(folders["falcon_h1"], "ppo.slots=5", "eval.slots=4")
    places, state = cached_numbers(skeleton(config.model))
    buffers = 5 * (architectures.CONTEXT + 1) * places * 4
    assert state and estimate(config).playing["cache"] == int(1.5 * buffers) + 5 * state * 4


def test_the_most_games_and_the_most_tokens_of_any_stage_count(folders: dict[str, Path]) -> None:
    sections = ("sft", "ppo", "dagger", "eval")
    fixed = [f"{section}.slots=8" for section in sections[1:]] + [f"{one}.micro_tokens=512" for one in sections[:3]]

    def of(*changes: str) -> tuple[int, int]:
        found = estimate(settings(folders["llama"], *fixed, *changes))
        return found.playing["cache"], found.learning["activations"]

    cache, activations = of()
    for section in sections:
        rounds = "dagger.rounds=1" if section == "dagger" else "dagger.rounds=0"
        if section != "sft":
            assert of(f"{section}.slots=32", rounds) == (4 * cache, activations)
        if section != "eval":
            assert of(f"{section}.micro_tokens=2048", rounds) == (cache, pytest.approx(4 * activations, abs=4))
    assert of("dagger.slots=32", "dagger.micro_tokens=2048") == (cache, activations)  # without rounds


def test_passes_keep_what_their_attention_and_their_casts_keep(folders: dict[str, Path]) -> None:
    """Here 4 heads in 2 layers."""

    def of(*changes: str, tokens: int = 64, dtype: torch.dtype = torch.float32) -> int:
        config = settings(folders["llama"], *changes).model
        return activation_bytes(skeleton(config), config, tokens, dtype)

    for tokens in (64, 1024):
        pairs = tokens * min(tokens, architectures.CONTEXT) * 4 * 2
        assert of("model.attention=eager", tokens=tokens) - of(tokens=tokens) == (4 + 4) * pairs
    short, long = (of("model.adapter=lora", tokens=tokens, dtype=torch.bfloat16) for tokens in (64, 1024))
    assert long == 16 * short  # our own kernel keeps no matrix of pairs
    shards, alone = (of(f"model.sharding={kind}", dtype=torch.bfloat16) for kind in ("fsdp", "none"))
    linear = sum(inputs * outputs for inputs, outputs in matrices(skeleton(settings(folders["llama"]).model)).values())
    assert alone - shards == 2 * linear
    # of a layer its input, 64 numbers, and beside the layers three times as much
    assert 2 * of("model.gradient_checkpointing=true") - of() == 64 * (2 * 2 + 3) * 4 * 64


def test_a_stored_checkpoint_in_4_bits_is_counted_as_such(folders: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    lm, tokenizer = load_base(settings(folders["llama"], "model.quantize=nf4").model)
    lm.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    config = settings(tmp_path / "m", "model.adapter=lora").model
    held = sum(p.numel() * p.element_size() for p in load_base(config)[0].parameters())
    assert weight_bytes(skeleton(config), config) == pytest.approx(held, rel=0.05)


def test_gpus_are_not_shared_by_the_processes_of_a_machine(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    config = settings(folders["llama"])
    with pretended():
        assert estimate(config, Processes(0, 4)).available == estimate(config).available


def test_shards_divide_all_but_the_copy_that_plays(folders: dict[str, Path]) -> None:
    config = settings(folders["qwen3"], "model.sharding=fsdp")
    alone, four = estimate(config), estimate(config, Processes(0, 4))
    for name in ("weights", "optimiser"):
        assert four.always[name] == pytest.approx(alone.always[name] / 4, rel=0.35)  # the value head stays whole
    assert four.learning["gradients"] < alone.learning["gradients"] / 2
    assert four.playing["cache"] == pytest.approx(alone.playing["cache"] / 4, rel=0.01)  # each plays its share
    playing = four.always["copies"] - alone.always["copies"] / 4
    assert playing > alone.always["weights"] * 0.9  # in float32 here
    whole, one_of_four = (estimate(settings(folders["qwen3"]), processes) for processes in (ALONE, Processes(0, 4)))
    assert (whole.always, whole.learning) == (one_of_four.always, one_of_four.learning)


def test_processes_of_a_machine_without_a_gpu_share_its_memory(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    alone, four = (estimate(settings(folders["llama"]), processes) for processes in (ALONE, Processes(0, 4)))
    assert four.available == (alone.available // 2 if default_device() == "cpu" else alone.available)


def test_what_no_memory_holds_does_not_fit(folders: dict[str, Path]) -> None:
    huge = settings(folders["llama"], "ppo.slots=1000000000")
    assert not estimate(huge).fits


def test_out_of_memory_names_settings_and_ordered_hints() -> None:
    config = load_config("cooking16", ["ppo.micro_tokens=4096"])
    with pytest.raises(OutOfMemoryError) as caught, explained_memory(config, "ppo"):
        # what torch really says when a CPU has no more
        torch.empty(2**62, dtype=torch.uint8)
    said, hint = caught.value.message, caught.value.hint
    assert "out of memory in ppo" in said
    assert "ppo.micro_tokens=4096" in said
    places = [hint.index(part) for part in ("micro_tokens=2048", "gradient_checkpointing", "slots=64", "lora", "nf4")]
    assert places == sorted(places)


def test_no_hint_is_refused() -> None:
    """Weights in shards take neither adapters nor 8-bit moments."""
    config = load_config("cooking16", ["model.sharding=fsdp"])
    for hint in (found.split(" ")[0] for stage in ("sft", "ppo", "eval") for found in hints(config, stage)):
        if "=" in hint:
            assert override(config, [hint])


def test_of_a_gpu_it_says_what_was_asked_for_and_is_free() -> None:
    """The words are an H100's, which go on with every process on it."""
    words = "CUDA out of memory. Tried to allocate 24.00 MiB. GPU 0 has a total capacity of 79.18 GiB of which "
    words += "65.42 GiB is free."
    more = " Process 1249 has 952.00 MiB memory in use. Including non-PyTorch memory, this process has 4.61 GiB memory"
    with pytest.raises(OutOfMemoryError) as caught, explained_memory(load_config("toy"), "sft"):
        raise torch.OutOfMemoryError(words + more)
    assert f"({words[:-1]}) with model.name=" in caught.value.message


def test_free_text_without_a_reference_takes_less() -> None:
    free = load_config("toy", ["policy.kind=write", "ppo.kl_coef=0.1"])
    assert any(hint.startswith("ppo.kl_coef=0 ") for hint in hints(free, "ppo"))
    for other in (["policy.kind=write", "ppo.kl_coef=0"], ["policy.kind=choose", "ppo.kl_coef=0.1"]):
        assert not any("kl_coef" in hint for hint in hints(load_config("toy", other), "ppo"))


def test_hints_are_only_about_what_can_still_be_changed() -> None:
    config = load_config(
        "cooking16",
        ["model.quantize=nf4", "model.gradient_checkpointing=true", "model.optimizer=paged-adamw-8bit", "ppo.slots=1"],
    )
    said = "; ".join(hints(config, "ppo"))
    assert not any(part in said for part in ("nf4", "lora", "checkpointing", "optimizer", "ppo.slots"))
    assert said.endswith("a smaller model")


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_other_errors_pass_as_they_are(error: Exception, is_memory: bool) -> None:
    assert is_out_of_memory(error) == is_memory
    with pytest.raises(OutOfMemoryError if is_memory else type(error)), explained_memory(load_config("toy"), "sft"):
        raise error
