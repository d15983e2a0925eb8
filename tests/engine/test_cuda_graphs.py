"""Passes that come again: read by graphs, from the same numbers as before. A tape stands for CUDA's graphs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel

import tape
from decoders import gemma3, llama
from grue.engine import cache as cache_module
from grue.engine import cuda_graphs as cuda_graphs_module
from grue.engine import engine as engine_module
from grue.engine.cuda_graphs import WORTH, Capture, PassRecorder
from grue.engine.engine import Engine
from grue.engine.passes import ON_GPU, round_up
from grue.engine.tree import TokenTree

TREE = TokenTree((1, 2, 3), (-1, 0, -1), (0, 1, 0))
NOTHING = TokenTree((), (), ())


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "ON_CPU", ON_GPU)
    monkeypatch.setattr(cache_module, "_zeros", torch.Tensor.new_zeros)


def engines(
    model: PreTrainedModel, slots: int, columns: int, capture: Capture = tape.capture
) -> tuple[Engine, PassRecorder, Engine]:
    """One that records, its recorder, and one that does not."""
    engine, plain = Engine(model, slots, columns), Engine(model, slots, columns)
    recorder = PassRecorder(engine.decoder, capture)
    engine.recorder = recorder
    assert plain.recorder is None
    return engine, recorder, plain


def same(engine: Engine, plain: Engine, rows: list[int], ids: list[list[int]]) -> bool:
    return torch.allclose(engine.feed(rows, ids), plain.feed(rows, ids), atol=1e-5)


def test_numbers_are_rounded_up_to_few() -> None:
    for least, steps in ((64, 4), (8, 4), (8, 1), (1, 2), (1, 1)):
        found = [round_up(number, least, steps) for number in range(1, 2049)]
        assert all(found[number - 1] >= number for number in range(1, 2049))
        assert all(rounded % least == 0 for rounded in found) and found == sorted(found)
        assert all(len({r for r in found if 2**k < r <= 2 ** (k + 1)}) <= steps for k in range(11))
    assert [round_up(number, 1, 1) for number in (1, 2, 3, 5, 64, 65)] == [1, 2, 4, 8, 64, 128]
    keys = replace(ON_GPU, coarse=True, columns=704).keys  # no larger cache, unless a look ahead needs one
    assert [keys(length) for length in (60, 400, 520, 650, 720)] == [64, 448, 640, 704, 768]


@pytest.mark.parametrize("make", [llama, gemma3])
def test_what_is_read_again_is_read_by_a_graph(
    make: Callable[[], PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the tokens, the rows, their histories and trees; beside other passes, and for few rows as for all."""
    monkeypatch.setattr(cuda_graphs_module, "WORTH", 2)
    engine, recorder, plain = engines(make(), 8, 250)
    rng = torch.Generator().manual_seed(0)

    def texts(*sizes: int) -> list[list[int]]:
        return [torch.randint(300, (size,), generator=rng).tolist() for size in sizes]

    for turn in range(12):
        for rows in ([3, 1, 0, 2, 4, 5, 6, 7], [5, 2]):
            ids, trees = texts(*[2 + (row + turn) % 3 for row in rows]), [TREE if row % 2 else NOTHING for row in rows]
            found, expected = (each.look_ahead(rows, ids, trees) for each in (engine, plain))
            assert torch.allclose(found, expected, atol=1e-5), turn
        assert same(engine, plain, [0, 4, 7], texts(1, 1, 60 if turn in (2, 5) else 1)), turn
    assert engine.lengths == plain.lengths
    assert recorder.replays > 15


def test_what_is_written_is_captured_at_once_and_other_passes_when_they_have_come_again() -> None:
    engine, recorder, plain = engines(llama(), 2, 90)
    assert same(engine, plain, [0, 1], [[1], [2]]) and recorder.replays == 0  # makes the cache
    assert same(engine, plain, [0, 1], [[3], [4]]) and recorder.replays == 1
    for turn in range(WORTH):
        assert recorder.replays == 1, turn
        assert same(engine, plain, [0, 1], [[5, 6], [7]])
    assert recorder.replays == 2
    assert same(engine, plain, [0, 1], [[8] * 49, [9]]) and recorder.replays == 2


def test_large_passes_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs_module, "MOST_TOKENS", 2)
    engine, recorder, plain = engines(llama(), 3, 90)
    for token in range(3):
        assert same(engine, plain, [0, 1, 2], [[token]] * 3) and recorder.replays == 0


def test_graphs_are_captured_anew_when_the_cache_has_moved() -> None:
    """The buffers begin with 512 columns, which one row outgrows; the others are then read as before."""
    engine, recorder, plain = engines(llama(), 4, 1500)
    for token in range(3):
        assert same(engine, plain, [1, 2], [[token], [token + 9]])
    replays = recorder.replays
    assert replays == 2
    assert same(engine, plain, [0], [[7] * 520])
    assert same(engine, plain, [1, 2], [[3, 4], [5]])  # of which the memory from before knows nothing
    for token in range(3):
        assert same(engine, plain, [1, 2], [[token], [token + 9]]), token
    assert recorder.replays == replays + 3


def test_a_cache_that_could_not_grow_is_not_taken_for_one_that_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory runs out between two layers, and the same is asked again."""
    engine, recorder, plain = engines(llama(), 2, 1500)
    assert same(engine, plain, [0, 1], [[5] * 512, [6] * 512])
    layer = engine._cache.layers[-1]
    grown = type(layer)._grown

    def fails(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no memory")

    ids = [[8], [9]]
    monkeypatch.setattr(layer, "_grown", fails, raising=False)
    with pytest.raises(torch.OutOfMemoryError):
        engine.feed([0, 1], ids)
    monkeypatch.setattr(layer, "_grown", lambda buffer: grown(layer, buffer), raising=False)
    assert same(engine, plain, [0, 1], ids)
    for token in range(6):
        assert same(engine, plain, [0, 1], [[token], [token]]), token
    assert recorder.replays >= 5


def test_what_cannot_be_captured_is_read_as_ever() -> None:
    tried = 0

    def fails(run: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
        nonlocal tried
        tried += 1
        raise RuntimeError("operation not permitted when stream is capturing")

    engine, recorder, plain = engines(llama(), 2, 90, fails)
    for token in range(6):
        assert same(engine, plain, [0, 1], [[token], [token + 50]])
    assert tried == 1 and recorder.replays == 0


def test_the_graphs_that_were_used_least_recently_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs_module, "MOST_BYTES", 20_000)
    engine, recorder, plain = engines(llama(), 32, 90)
    most = 0
    for token in range(4):
        for count in (4, 6, 10, 12, 14, 32):
            assert same(engine, plain, list(range(count)), [[token]] * count)
            held = sum(graph.bytes for graph in recorder._graphs.values())
            most = max(most, len(recorder._graphs))
            assert held <= 20_000 or len(recorder._graphs) == 1
    assert 1 < most < 4 and len(recorder._met) == len(recorder._graphs)


def test_a_graph_is_not_for_another_setting_of_the_model() -> None:
    """Without the adapter that it was captured with, in training, or when some weights have moved."""
    model = get_peft_model(llama(), LoraConfig(target_modules="all-linear", init_lora_weights=False))
    engine, recorder, plain = engines(model.get_base_model(), 2, 90)
    known = []

    def read(token: int) -> None:
        assert same(engine, plain, [0, 1], [[token], [9]])
        known.append(len(recorder._graphs))

    for token in range(3):
        read(token)
    with model.disable_adapter():
        read(5)
    read(6)
    for name, parameter in model.named_parameters():
        if "lora" in name:
            parameter.data = parameter.data.clone()
    read(7)
    model.train()
    read(8)
    assert known == [0, 1, 1, 2, 2, 3, 4]


def test_an_engine_that_nobody_holds_gives_its_memory_back_at_once() -> None:
    """The search for cycles is put off while a run is open, and a cache may have all of a GPU."""
    gc.disable()
    try:
        engine, recorder, _ = engines(llama(), 2, 90, lambda run: (lambda: None, run()))
        for token in range(3):
            engine.feed([0, 1], [[token], [2]])
        assert recorder.replays == 2
        gone = [weakref.ref(engine), weakref.ref(recorder)]
        del engine, recorder
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()
