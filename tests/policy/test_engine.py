"""The ragged KV cache gives what a full forward pass gives, whatever is fed when."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

import tiny
from grue.errors import ModelError
from grue.policy.engine import Engine

COLUMNS = 96


def llama() -> PreTrainedModel:
    return tiny.llama()


def gpt2() -> PreTrainedModel:
    """Learned positions, one fused projection, biases."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=320, n_positions=128, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3)
    torch.manual_seed(0)
    return GPT2LMHeadModel(config).eval()


def qwen3() -> PreTrainedModel:
    """Normalised queries and keys, a head size that is not hidden / heads."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).eval()


def gemma3() -> PreTrainedModel:
    """One layer that sees the last 16 tokens only, one that sees all."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    return Gemma3ForCausalLM(config).eval()


def mistral() -> PreTrainedModel:
    """All layers see the last 10 tokens only."""
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        sliding_window=10,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    return MistralForCausalLM(config).eval()


@torch.no_grad()
def full_pass(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    return model.get_decoder()(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1]


def check(engine: Engine, fed: dict[int, list[int]], rows: list[int], new: list[list[int]]) -> None:
    hidden = engine.feed(rows, new)
    for place, (row, ids) in enumerate(zip(rows, new, strict=True)):
        fed[row] = fed[row] + ids
        expected = full_pass(engine.model, fed[row])
        assert torch.allclose(hidden[place], expected, atol=1e-5, rtol=1e-4), (row, len(fed[row]))


@pytest.mark.parametrize("make", [llama, gpt2, qwen3, gemma3, mistral])
def test_a_random_schedule_gives_the_hidden_states_of_full_passes(make: Callable[[], PreTrainedModel]) -> None:
    """Subsets of the rows in any order, 1 to 12 new tokens each, resets in between."""
    model, draw, slots = make(), random.Random(3), 6
    engine = Engine(model, slots, COLUMNS)
    fed: dict[int, list[int]] = {row: [] for row in range(slots)}
    kinds: Counter[str] = Counter()
    for _ in range(30):
        for row in range(slots):
            if len(fed[row]) > COLUMNS - 12 or draw.random() < 0.05:
                engine.reset(row)
                fed[row] = []
                kinds["reset"] += 1
        rows = draw.sample(range(slots), draw.choice((1, 2, 4, 5, 6)))
        rows = sorted(rows) if draw.random() < 0.5 else rows
        most = draw.choice((1, 4, 12))
        new = [[draw.randrange(300) for _ in range(draw.randint(1, most))] for _ in rows]
        most_rows = len(rows) < slots <= 2 * len(rows)
        kinds["in order" if rows == list(range(slots)) else "most rows" if most_rows else "few rows"] += 1
        check(engine, fed, rows, new)
        assert engine.lengths == [len(fed[row]) for row in range(slots)]
    assert all(kinds[kind] >= 2 for kind in ("reset", "in order", "most rows", "few rows")), kinds


def test_a_sequence_may_fill_its_row_to_the_last_column() -> None:
    engine, fed = Engine(llama(), 2, COLUMNS), {0: [], 1: []}
    check(engine, fed, [0], [[7] * (COLUMNS - 1)])
    check(engine, fed, [0, 1], [[8], [9]])
    assert engine.lengths == [COLUMNS, 1]


def test_the_cache_grows_with_its_longest_sequence() -> None:
    """Far beyond the columns it begins with, while its neighbour stays short."""
    engine, fed, draw = Engine(llama(), 3, 700), {0: [], 1: [], 2: []}, random.Random(0)
    check(engine, fed, [2, 0], [[5], [6, 7]])
    for size in (150, 120, 260, 150):
        check(engine, fed, [0, 1], [[draw.randrange(300) for _ in range(size)], [draw.randrange(300)]])
    check(engine, fed, [0, 1, 2], [[1] * 15, [2], [3, 4]])
    assert engine.lengths == [697, 5, 3]


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


def test_layers_that_keep_no_keys_are_refused_by_their_kind() -> None:
    model = qwen3()
    model.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ModelError, match="qwen3 has layers of the kind 'linear_attention'"):
        Engine(model, 2, COLUMNS)
