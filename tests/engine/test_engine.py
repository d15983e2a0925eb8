"""The ragged KV cache gives what a full forward pass gives, whatever is fed when."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import tiny
from decoders import (
    ARCHITECTURES,
    MORE_RECURRENT,
    RECURRENT,
    bert,
    bloom,
    doge,
    falcon,
    falcon_with_alibi,
    gemma3,
    gpt2,
    llama,
    qwen3,
    rwkv,
    t5,
    zamba2,
)
from grue.engine import engine as engine_module
from grue.engine.engine import Engine
from grue.engine.passes import ON_GPU, Pass, plan_pass
from grue.engine.tree import TokenTree, candidate_tree, pieces
from grue.errors import ConfigError, ModelError
from grue.models import attention
from grue.models.architecture import is_recurrent
from grue.models.policy_model import PolicyModel
from grue.policy.drivable import check_drivable
from grue.types import Candidate

COLUMNS = 96


@torch.no_grad()
def full_pass(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    return model.get_decoder()(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1]


def check(engine: Engine, fed: dict[int, list[int]], rows: list[int], new: list[list[int]]) -> None:
    # random states are divided by their own length, which magnifies rounding where they are short
    exact = {"atol": 1e-3, "rtol": 1e-3} if is_recurrent(engine.decoder.config) else {"atol": 1e-5, "rtol": 1e-4}
    hidden = engine.feed(rows, new)
    for place, (row, ids) in enumerate(zip(rows, new, strict=True)):
        fed[row] = fed[row] + ids
        expected = full_pass(engine.model, fed[row])
        assert torch.allclose(hidden[place], expected, **exact), (row, len(fed[row]))


def group_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[Pass]:
    """The passes that will have been planned so."""
    passes: list[Pass] = []

    def noted(*arguments: Any) -> Pass:
        passes.append(plan_pass(*arguments))
        return passes[-1]

    monkeypatch.setattr(engine_module, "ON_CPU", ON_GPU)
    monkeypatch.setattr(engine_module, "plan_pass", noted)
    return passes


@pytest.mark.parametrize(
    ("make", "part_bytes", "as_on_a_gpu"),
    [
        *product(ARCHITECTURES, (attention.PART_BYTES, 1), [False]),
        *((make, attention.PART_BYTES, True) for make in (llama, qwen3, gemma3, falcon, RECURRENT[0])),
        *((make, attention.PART_BYTES, False) for make in (*RECURRENT, *MORE_RECURRENT)),
    ],
)
def test_a_random_schedule_gives_the_hidden_states_of_full_passes(
    make: Callable[[], PreTrainedModel], part_bytes: int, as_on_a_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Subsets of the rows in any order, one or more new tokens each, resets in between; many rows at once, or one."""
    monkeypatch.setattr(attention, "PART_BYTES", part_bytes)
    passes = group_as_on_a_gpu(monkeypatch) if as_on_a_gpu else []
    longest = 60 if as_on_a_gpu else 12
    model, draw, slots = make(), random.Random(3), 6
    engine = Engine(model, slots, COLUMNS)
    fed: dict[int, list[int]] = {row: [] for row in range(slots)}
    kinds: Counter[str] = Counter()
    for _ in range(30):
        for row in range(slots):
            if len(fed[row]) > COLUMNS - longest or draw.random() < 0.05:
                engine.reset(row)
                fed[row] = []
                kinds["reset"] += 1
        rows = draw.sample(range(slots), draw.choice((1, 2, 4, 5, 6)))
        rows = sorted(rows) if draw.random() < 0.5 else rows
        most = draw.choice((1, 4, longest))
        new = [[draw.randrange(300) for _ in range(draw.randint(1, most))] for _ in rows]
        most_rows = len(rows) < slots <= 2 * len(rows)
        kinds["in order" if rows == list(range(slots)) else "most rows" if most_rows else "few rows"] += 1
        check(engine, fed, rows, new)
        assert engine.lengths == [len(fed[row]) for row in range(slots)]
    assert all(kinds[kind] >= 2 for kind in ("reset", "in order", "most rows", "few rows")), kinds
    if as_on_a_gpu:
        groups = [group for planned in passes for group in planned.groups]
        assert all(group.length % 64 == 0 for group in groups)
        assert any(len(planned.groups) > 1 for planned in passes)
        assert any(group.rows_B is None for group in groups) == engine._packs
        assert any(group.rows_B is not None for group in groups)


@pytest.mark.parametrize("make", [llama, falcon, RECURRENT[0]])
def test_a_pass_that_would_be_too_large_is_read_in_parts(
    make: Callable[[], PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "PASS_TOKENS", 12)
    passes: list[int] = []
    plan = engine_module.plan_pass
    monkeypatch.setattr(
        engine_module, "plan_pass", lambda rows, *rest: (passes.append(len(rows)), plan(rows, *rest))[1]
    )
    engine, rng = Engine(make(), 6, COLUMNS), random.Random(0)
    fed: dict[int, list[int]] = {row: [] for row in range(6)}
    check(engine, fed, [*fed], [[rng.randrange(5, 60) for _ in range(count)] for count in (9, 3, 30, 1, 7, 12)])
    assert passes == [2, 1, 2, 1]  # the third text is alone: it is longer than a pass may be
    check(engine, fed, [5, 0], [[7], [8, 9]])
    assert passes[4:] == [2]
    assert engine.lengths == [11, 3, 30, 1, 7, 13]
    if not is_recurrent(engine.decoder.config):
        trees = [candidate_tree([Candidate(ids, 1.0) for ids in ((1, 2, 3, 4), (1, 9), (8, 5, 6))])] * 3
        in_parts = engine.look_ahead([2, 1, 4], [(), (), ()], trees)
        assert passes[5:] == [2, 1]
        monkeypatch.setattr(engine_module, "PASS_TOKENS", 100)
        assert torch.allclose(in_parts, engine.look_ahead([2, 1, 4], [(), (), ()], trees), atol=1e-5, rtol=1e-4)
        assert passes[7:] == [3]


def test_a_sequence_may_fill_its_row_to_the_last_column() -> None:
    engine, fed = Engine(llama(), 2, COLUMNS), {0: [], 1: []}
    check(engine, fed, [0], [[7] * (COLUMNS - 1)])
    check(engine, fed, [0, 1], [[8], [9]])
    assert engine.lengths == [COLUMNS, 1]


def test_the_cache_grows_with_its_longest_sequence() -> None:
    """Far beyond the columns it begins with, while its neighbour stays short."""
    engine, fed, draw = Engine(llama(), 3, 1500), {0: [], 1: [], 2: []}, random.Random(0)
    check(engine, fed, [2, 0], [[5], [6, 7]])
    for size in (150, 120, 260, 450, 200):
        check(engine, fed, [0, 1], [[draw.randrange(300) for _ in range(size)], [draw.randrange(300)]])
    check(engine, fed, [0, 1, 2], [[1] * 15, [2], [3, 4]])
    assert engine.lengths == [1197, 6, 3]


def test_one_token_too_many_is_an_error_that_loses_nothing() -> None:
    engine, fed = Engine(llama(), 2, COLUMNS), {0: [], 1: []}
    check(engine, fed, [0, 1], [[7] * (COLUMNS - 3), [5, 6]])
    with pytest.raises(ModelError, match=f"sequence of {COLUMNS + 1} tokens .* {COLUMNS}") as caught:
        engine.feed([0], [[1, 2, 3, 4]])
    assert "model.context" in caught.value.hint
    check(engine, fed, [0, 1], [[1, 2, 3], [4]])  # it fits to the brim, and the cache is as it was


def test_padding_to_a_long_neighbour_does_not_count_as_length() -> None:
    """Row 0 has room for its 3 tokens, row 1 for its 40; only the padding of row 0 would not fit."""
    engine, fed = Engine(llama(), 3, COLUMNS), {0: [], 1: [], 2: []}
    check(engine, fed, [0], [[7] * 90])
    check(engine, fed, [0, 1], [[1, 2, 3], list(range(40))])
    check(engine, fed, [0, 1], [[4], [5]])


def test_feeding_neighbours_does_not_disturb_a_row_that_is_nearly_full() -> None:
    """It has 2 columns left, then none, while two of the three rows are fed."""
    engine, fed = Engine(llama(), 3, COLUMNS), {0: [], 1: [], 2: []}
    check(engine, fed, [0, 1, 2], [list(range(100, 100 + COLUMNS - 2)), [1], [2]])
    check(engine, fed, [1, 2], [[3, 4, 5, 6], [7]])
    check(engine, fed, [0], [[8]])
    check(engine, fed, [1, 2], [[9], [10]])
    check(engine, fed, [0], [[11]])
    check(engine, fed, [2, 1], [[12, 13], [14]])
    assert engine.lengths[0] == COLUMNS


def test_layers_of_an_unknown_kind_are_refused_by_it() -> None:
    model = qwen3()
    model.config.layer_types = ["chunked_attention", "full_attention"]
    with pytest.raises(ModelError, match="qwen3 has layers of the kind 'chunked_attention'"):
        Engine(model, 2, COLUMNS)


@pytest.mark.parametrize("make", [*ARCHITECTURES, *RECURRENT])
@torch.no_grad()
def test_logits_are_those_of_the_whole_model_and_of_a_batch_of_64(make: Callable[[], PreTrainedModel]) -> None:
    """64 sequences of different lengths in two feeds each; four of them again alone, and in plain forward passes."""
    model, draw = PolicyModel(make()), random.Random(5)
    sequences = [[draw.randrange(300) for _ in range(draw.randint(2, 40))] for _ in range(64)]
    cuts = [draw.randint(1, len(ids) - 1) for ids in sequences]
    together = Engine(model.lm, 64, COLUMNS)
    together.feed(range(64), [ids[:cut] for ids, cut in zip(sequences, cuts, strict=True)])
    hidden = together.feed(range(64), [ids[cut:] for ids, cut in zip(sequences, cuts, strict=True)])
    logits = model.vocabulary_logits(hidden)
    for row in (0, 9, 31, 63):
        alone = Engine(model.lm, 1, COLUMNS)
        alone.feed([0], [sequences[row][: cuts[row]]])
        single = model.vocabulary_logits(alone.feed([0], [sequences[row][cuts[row] :]]))[0]
        plain = model.lm(torch.tensor([sequences[row]]), use_cache=False).logits[0, -1]
        assert torch.allclose(logits[row], plain, atol=1e-4, rtol=1e-4)
        assert torch.allclose(single, plain, atol=1e-4, rtol=1e-4)
    assert float(logits.std()) > 0.1  # not all the same


@pytest.mark.parametrize(
    ("make", "as_on_a_gpu"), [*((make, False) for make in ARCHITECTURES), (llama, True), (gemma3, True), (falcon, True)]
)
def test_a_look_ahead_gives_the_states_of_whole_sequences_and_leaves_no_trace(
    make: Callable[[], PreTrainedModel], as_on_a_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees of several actions behind rows of different lengths; longer than a window of 16 too."""
    passes = group_as_on_a_gpu(monkeypatch) if as_on_a_gpu else []
    actions = [(1, 2, 3, 4), (1, 2, 7), (1, 9), (8, 5, 6)], [(3, 1), (4, 1, 2, 6)]
    trees = [candidate_tree([Candidate(ids, 1.0) for ids in group]) for group in actions]
    engine, fed = Engine(make(), 3, COLUMNS), {0: [], 1: [], 2: []}
    check(engine, fed, [0, 1, 2], [list(range(30)), [5, 6, 7], list(range(40, 60))])
    ahead = engine.look_ahead([2, 1], [(), ()], trees).split([len(tree.tokens) for tree in trees])
    for row, tree, states in zip((2, 1), trees, ahead, strict=True):
        for place in range(len(tree.tokens)):
            line, node = [], place
            while node >= 0:
                line, node = [tree.tokens[node], *line], tree.parents[node]
            expected = full_pass(engine.model, [*fed[row], *line])
            assert torch.allclose(states[place], expected, atol=1e-5, rtol=1e-4), (row, line)
    assert engine.lengths == [30, 3, 20]
    check(engine, fed, [0, 1, 2], [[1], [2, 3], [4]])
    assert not passes or (passes[1].groups[0].rows_B is None) == engine._packs


def test_a_look_ahead_may_reach_beyond_the_longest_sequence() -> None:
    """The tree is wider than what is left of the columns; no path in it is deeper."""
    engine, fed = Engine(llama(), 2, COLUMNS), {0: [], 1: []}
    check(engine, fed, [0, 1], [list(range(COLUMNS - 3)), [1, 2]])
    tree = candidate_tree([Candidate((first, 7, 8), 1.0) for first in range(100, 120)])
    assert len(tree.tokens) == 40
    states = engine.look_ahead([0], [()], [tree])
    for place, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        line = [token] if parent < 0 else [tree.tokens[parent], token]
        assert torch.allclose(states[place], full_pass(engine.model, [*fed[0], *line]), atol=1e-5, rtol=1e-4)
    check(engine, fed, [0, 1], [[5, 6, 7], [8]])
    with pytest.raises(ModelError, match=f"sequence of {COLUMNS + 2} tokens"):
        engine.look_ahead([0], [()], [tree])  # now even a path does not fit


@pytest.mark.parametrize("make", [llama, gemma3])
@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_a_large_tree_is_read_in_pieces(make: Callable[[], PreTrainedModel], most: int) -> None:
    """Some rows have a text before the tree, some no tree; what is fed afterwards sees nothing of the pieces."""
    bushy = candidate_tree([Candidate((a, b, c, 1), 1.0) for a in (1, 2) for b in (3, 4, 5) for c in (6, 7)])
    trees = [bushy, candidate_tree([Candidate((9, 8), 1.0)]), TokenTree((), (), ())]
    given = ([2, 1, 0], [(), (4, 5), (6,)], trees)
    whole, cut = Engine(make(), 3, COLUMNS), Engine(make(), 3, COLUMNS)
    cut._grouping = replace(cut._grouping, tree=most)
    found = []
    for engine in (whole, cut):
        engine.feed([0, 1, 2], [list(range(30)), [5, 6, 7], list(range(40, 60))])
        found.append((engine.look_ahead(*given), engine.feed([0, 2], [[3], [4]]), engine.lengths))
    (before, fed, lengths), (after, fed_after, lengths_after) = found
    assert len(before) == len(bushy.tokens) + 1 + 1 + 1
    assert torch.allclose(before, after, atol=1e-5, rtol=1e-4)
    assert torch.allclose(fed, fed_after, atol=1e-5, rtol=1e-4) and lengths == lengths_after == [32, 5, 21]


def test_pieces_of_a_tree_hold_each_token_once_below_its_ancestors() -> None:
    rng = random.Random(0)
    for size in (1, 2, 10, 60):
        parents = tuple(rng.randint(-1, place - 1) for place in range(size))
        depths: list[int] = []
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        tree = TokenTree(tuple(rng.randrange(100) for _ in range(size)), parents, tuple(depths))
        for most in (1, 3, 8, size):
            found = pieces(tree, most)
            assert sorted(place for piece in found for place in piece.places) == list(range(size))
            for part, own, places in found:
                assert len(part.tokens) <= max(most, max(depths) + max(1, most // 2))
                for here, there in zip(own, places, strict=True):
                    assert _line(part, here) == _line(tree, there)


def test_long_actions_are_not_repeated_for_each_of_their_tokens() -> None:
    tree = candidate_tree([Candidate(tuple(range(first, first + 900)), 1.0) for first in (0, 1000, 2000, 3000)])
    assert sum(len(piece.tree.tokens) for piece in pieces(tree, 512)) < 3 * len(tree.tokens)


def _line(tree: TokenTree, place: int) -> list[tuple[int, int]]:
    """(token, depth) of a place and of those above it."""
    line = []
    while place >= 0:
        line.append((tree.tokens[place], tree.depths[place]))
        place = tree.parents[place]
    return line


def test_a_recurrent_state_reads_no_trees_and_does_not_go_back() -> None:
    engine = Engine(RECURRENT[0](), 2, COLUMNS)
    engine.feed([0], [[1, 2, 3]])
    with pytest.raises(ConfigError, match="a look ahead reads trees of actions, which qwen3_5_text"):
        engine.look_ahead([0], [()], [candidate_tree([Candidate((1, 2), 1.0)])])
    with pytest.raises(ModelError, match="qwen3_5_text keeps a recurrent state, which cannot go back"):
        engine.reset(0, 2)


@pytest.mark.parametrize("make", [*RECURRENT, *MORE_RECURRENT, zamba2])
def test_rows_of_different_lengths_are_read_together_where_states_do_not_move_with_padding(
    make: Callable[[], PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, widths = Engine(make(), 4, COLUMNS), []
    forward = engine._forward

    def noted(ids_BL: torch.Tensor, *rest: Any, **given: Any) -> torch.Tensor:
        widths.append(tuple(ids_BL.shape))
        return forward(ids_BL, *rest, **given)

    monkeypatch.setattr(engine, "_forward", noted)
    engine.feed(range(4), [[1, 2, 3], [4], [5, 6], [7, 8, 9]])
    together = make.__name__ not in ("jamba", "mamba", "zamba2")  # no gates that could be closed; a least step
    assert widths == ([(4, 3)] if together else [(1, 1), (1, 2), (2, 3)])
    hooked = [module for module in engine.decoder.modules() if module._forward_hooks]
    assert not hooked, "gates are closed for a pass, not for good"


def test_a_state_weighs_what_is_to_come() -> None:
    """The tolerance for recurrent layers is far below what a lost state does."""
    for make in (*RECURRENT, *MORE_RECURRENT):
        engine = Engine(make(), 2, COLUMNS)
        engine.feed([0, 1], [[1, 2, 3, 4], [1, 2, 3, 4]])
        with torch.inference_mode():
            for layer in engine._states:
                layer.forget(1)
        kept, lost = engine.feed([0, 1], [[5], [5]])
        assert float((kept - lost).abs().max()) > 0.02, make.__name__


def test_a_row_can_be_cut_back() -> None:
    engine, fed = Engine(llama(), 2, COLUMNS), {0: [], 1: []}
    check(engine, fed, [0, 1], [list(range(20)), [1, 2]])
    engine.reset(0, 15)
    fed[0] = fed[0][:15]
    check(engine, fed, [0, 1], [[7, 8], [9]])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (rwkv, "rwkv keeps a recurrent state"),
        (t5, "t5 is an encoder with a decoder"),
        (falcon_with_alibi, "falcon with alibi"),
        (bloom, "the decoder of bloom takes no position_ids"),
        (bert, "bert is an encoder, whose tokens see what comes after them"),
    ],
)
def test_what_cannot_be_driven_is_refused_by_name_with_the_way_out(
    make: Callable[[], PreTrainedModel], said: str
) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        Engine(make(), 2, 8)
    assert "Llama" in caught.value.hint


def test_what_no_rule_knows_is_found_out_by_trying() -> None:
    with pytest.raises(ModelError, match="doge cannot be fed in parts: ") as caught:
        check_drivable(PolicyModel(doge().eval()))
    assert "Llama" in caught.value.hint


def test_a_model_that_sees_what_is_to_come_is_found_out_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large weights, as trained ones are: those of a fresh model hardly look at each other."""
    model = bert().eval()
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    monkeypatch.setattr("grue.engine.engine.check_architecture", lambda model: None)
    with pytest.raises(ModelError, match="bert gives other logits when a text is read in parts"):
        check_drivable(PolicyModel(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [*ARCHITECTURES, *RECURRENT])
def test_what_can_be_driven_passes_the_trial(make: Callable[[], PreTrainedModel], dtype: torch.dtype) -> None:
    check_drivable(PolicyModel(make().to(dtype)))


def test_a_context_beyond_the_positions_of_the_model_is_refused() -> None:
    with pytest.raises(ModelError, match="gpt2 knows 128 positions, fewer than a context of 129") as caught:
        Engine(gpt2(), 1, 129)
    assert "model.context=128" in caught.value.hint


def test_all_positions_that_a_model_knows_may_be_used() -> None:
    model = tiny.llama()
    known = model.config.max_position_embeddings
    assert Engine(model, 1, known).columns == known
