"""Text to ids: pieces that are the same everywhere, and game text that stays text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import ByT5Tokenizer

import tiny
from grue.prompts.tokens import Encoder
from grue.prompts.transcript import render_action, render_observation, render_task, tidy

HOSTILE = "A note reads <eos><bos> and <pad>. <eos>"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def special_ids() -> set[int]:
    return set(tiny.tokenizer().all_special_ids)


def test_the_tokenizer_would_make_special_tokens_of_hostile_text() -> None:
    """Otherwise the next tests would prove nothing."""
    assert special_ids() & set(tiny.tokenizer().encode(HOSTILE, add_special_tokens=False))


def test_game_text_cannot_produce_special_tokens() -> None:
    encoder = tiny.encoder()
    assert not special_ids() & set(encoder.observation(HOSTILE))
    assert not special_ids() & set(encoder.action("take <eos>"))
    begin, *header = encoder.task(HOSTILE, 16)
    assert begin == tiny.tokenizer().bos_token_id
    assert not special_ids() & set(header)
    # and the setting is that of a copy: the tokenizer itself still knows its special tokens
    assert special_ids() & set(tiny.tokenizer().encode(HOSTILE, add_special_tokens=False))


def test_game_text_cannot_produce_special_tokens_with_a_slow_tokenizer() -> None:
    slow = ByT5Tokenizer()
    assert slow.eos_token_id in slow.encode("a</s>b", add_special_tokens=False)
    encoder = Encoder(slow)
    assert not set(slow.all_special_ids) & set(encoder.observation("a</s>b<pad><unk>"))
    assert len(encoder.action("</s>")) == len(" </s>\n")  # a byte each
    assert encoder.task("Win.", 3)[0] != slow.eos_token_id  # it has no token for beginnings


def test_a_line_ends_with_the_newline_alone_where_every_text_begins_with_a_space() -> None:
    """As in Llama 2 and other Unigram tokenizers: a newline by itself would be ("▁", "<0x0A>")."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁take", "▁key", *"takey>"]
    unigram = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0, byte_fallback=True))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    unigram.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    encoder = Encoder(PreTrainedTokenizerFast(tokenizer_object=unigram, unk_token="<unk>"))
    names = encoder.tokenizer.convert_ids_to_tokens
    action = encoder.action("take key")
    assert names(action) == ["▁take", "▁key", "<0x0A>"]
    assert names(encoder.without_end(action)) == ["▁take", "▁key"]
    assert names(encoder.closing(action[:-1])) == ["<0x0A>"]
    assert encoder.closing(action) == ()
    assert names(encoder.after_thought(())) == ["<0x0A>", "▁", ">"]


@given(TEXT)
def test_ids_are_the_text_that_was_rendered(text: str) -> None:
    decode = tiny.tokenizer().decode
    encoder = tiny.encoder()
    assert decode(encoder.observation(text)) == render_observation(text)
    assert decode(encoder.action(text)) == render_action(text)
    assert decode(encoder.task(text, 9)[1:]) == render_task(text, 9)


@given(TEXT)
def test_tidying_twice_changes_nothing_and_no_words_are_lost(text: str) -> None:
    assert tidy(tidy(text)) == tidy(text)
    assert "".join(tidy(text).split()) == "".join(text.split())


def test_a_transcript_by_hand() -> None:
    assert render_task("Find the gem. \n", 16) == "Find the gem. You have 16 steps.\n"
    assert render_observation("A room. \n\n\nA door.  \n") == "A room.\nA door.\n>"
    assert render_action("go east") == " go east\n"
    # the marker and the action make one line
    assert render_observation("A room.") + render_action("look") == "A room.\n> look\n"


@pytest.mark.parametrize("limit", [1, 16, 5000])
def test_the_step_limit_is_in_the_prompt(limit: int) -> None:
    assert f"You have {limit} steps." in tiny.tokenizer().decode(tiny.encoder().task("Win.", limit))


def test_equal_pieces_are_encoded_once() -> None:
    assert tiny.encoder().action("go east") is tiny.encoder().action("go east")
    assert tiny.encoder().observation("A room.") is tiny.encoder().observation("A room.")
