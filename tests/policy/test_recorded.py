"""Passes that come again: read by recordings, from the same numbers as before."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from peft import LoraConfig, get_peft_model

from decoders import gemma3, llama
from grue.policy import engine as engine_module
from grue.policy.engine import Engine
from grue.policy.passes import ON_GPU, round_up
from grue.policy.recorded import MOST_FAILURES, WORTH, Recorder
from grue.policy.tree import TokenTree

TREE = TokenTree((1, 2, 3), (-1, 0, -1), (0, 1, 0))
NOTHING = TokenTree((), (), ())


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "ON_CPU", ON_GPU)


def recorded(engine: Engine) -> Recorder:
    assert engine.recorder is not None
    return engine.recorder


def test_numbers_are_rounded_up_to_few() -> None:
    for least, steps in ((64, 4), (8, 8), (1, 2), (1, 1)):
        found = [round_up(number, least, steps) for number in range(1, 2049)]
        assert all(found[number - 1] >= number for number in range(1, 2049))
        assert all(rounded % least == 0 for rounded in found) and found == sorted(found)
        assert all(len({r for r in found if 2**k < r <= 2 ** (k + 1)}) <= steps for k in range(11))
    assert [round_up(number, 1, 1) for number in (1, 2, 3, 5, 64, 65)] == [1, 2, 4, 8, 64, 128]


@pytest.mark.parametrize("make", [llama, gemma3])
def test_what_is_read_again_is_read_by_a_recording(make: Callable[[], torch.nn.Module]) -> None:
    """Whatever the tokens, the rows, their histories and trees; beside other passes, and for few rows as for all."""
    model = make()
    engine, plain = Engine(model, 8, 250), Engine(model, 8, 250)
    plain.recorder = None
    rng = torch.Generator().manual_seed(0)

    def texts(*sizes: int) -> list[list[int]]:
        return [torch.randint(300, (size,), generator=rng).tolist() for size in sizes]

    for turn in range(12):
        for rows in ([3, 1, 0, 2, 4, 5, 6, 7], [5, 2]):
            ids, trees = texts(*[2 + (row + turn) % 3 for row in rows]), [TREE if row % 2 else NOTHING for row in rows]
            found, expected = (each.look_ahead(rows, ids, trees) for each in (engine, plain))
            assert torch.allclose(found, expected, atol=1e-5), turn
        ids = texts(1, 1, 60 if turn in (2, 5) else 1)  # one that begins is not recorded
        assert torch.allclose(engine.feed([0, 4, 7], ids), plain.feed([0, 4, 7], ids), atol=1e-5)
    assert engine.lengths == plain.lengths
    assert recorded(engine).replays > 15


def test_recordings_are_made_anew_when_the_cache_has_moved() -> None:
    engine, plain = Engine(llama(), 2, 1500), Engine(llama(), 2, 1500)
    plain.recorder = None
    sizes = [1, 1, 1, 500, 1, 1, 1, 1]  # the buffers begin with 512 columns
    replays = []
    for number, size in enumerate(sizes):
        ids = [[(number * 7 + place) % 300 for place in range(size)], [number]]
        assert torch.allclose(engine.feed([0, 1], ids), plain.feed([0, 1], ids), atol=1e-5), number
        replays.append(recorded(engine).replays)
    assert replays[2] > 0 and replays[-1] > replays[3]


def test_what_cannot_be_recorded_is_read_as_ever() -> None:
    engine, plain, tried = Engine(llama(), 2, 90), Engine(llama(), 2, 90), 0

    def fails(run: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
        nonlocal tried
        tried += 1
        raise RuntimeError("operation not permitted when stream is capturing")

    engine.recorder, plain.recorder = Recorder(fails), None
    for token in range(6):
        ids = [[token], [token + 50]]
        assert torch.allclose(engine.feed([0, 1], ids), plain.feed([0, 1], ids), atol=1e-5)
    assert tried == MOST_FAILURES and recorded(engine).replays == 0


def test_an_engine_that_nobody_holds_gives_its_memory_back_at_once() -> None:
    """The search for cycles is put off while a run is open, and a cache may have all of a GPU."""
    model, gone = llama(), []
    gc.disable()
    try:
        engine = Engine(model, 2, 90)
        gone = [weakref.ref(engine), weakref.ref(recorded(engine))]
        engine.feed([0, 1], [[1], [2]])
        del engine
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()


def test_what_is_written_is_recorded_at_once_and_other_passes_when_they_have_come_again() -> None:
    engine = Engine(llama(), 2, 90)
    engine.feed([0, 1], [[1], [2]])  # makes the cache
    engine.feed([0, 1], [[3], [4]])
    assert recorded(engine).replays == 1
    for turn in range(WORTH):
        assert recorded(engine).replays == 1, turn
        engine.feed([0, 1], [[5, 6], [7]])
    assert recorded(engine).replays == 2
    engine.feed([0, 1], [[8] * 49, [9]])
    assert recorded(engine).replays == 2


def test_a_recording_is_not_played_to_another_setting_of_the_model() -> None:
    """Without the adapter that it was made with, or when the weights have moved."""
    model = get_peft_model(llama(), LoraConfig(target_modules="all-linear", init_lora_weights=False))
    engine, plain = Engine(model.get_base_model(), 2, 90), Engine(model.get_base_model(), 2, 90)
    plain.recorder, replays = None, []

    def read(token: int) -> None:
        found, expected = engine.feed([0, 1], [[token], [9]]), plain.feed([0, 1], [[token], [9]])
        assert torch.allclose(found, expected, atol=1e-5)
        replays.append(len(recorded(engine)._known))

    for token in range(3):
        read(token)
    with model.disable_adapter():
        read(5)
    read(6)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    read(7)
    assert replays == [0, 1, 1, 2, 2, 3]
