"""Text made safe, and numbers as people read them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.report.markup import Html, join, tag
from grue.report.metrics import policy_title
from grue.report.text import (
    as_number,
    duration,
    escape,
    fixed,
    interval_text,
    number,
    one_line,
    percent,
    redact,
    signed,
    visible,
)

relaxed = settings(deadline=None, max_examples=200)


@relaxed
@given(st.text(st.characters(codec=None, categories=None)))
def test_no_character_acts(text: str) -> None:
    shown = visible(text)
    for sign in shown:
        assert unicodedata.category(sign) not in ("Cs", "Cc") or sign in "\n\t"
        assert unicodedata.bidirectional(sign) not in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    shown.encode()  # lone surrogates would raise


@relaxed
@given(st.text())
def test_escaped_text_has_no_sign_that_html_obeys(text: str) -> None:
    escaped = escape(text)
    assert not set(escaped) & set("<>\"'")
    assert "&" not in escaped.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "").replace(
        "&quot;", ""
    ).replace("&#x27;", "")


def test_ordinary_text_stays() -> None:
    for text in (
        "two\nlines\tand a tab",
        "Ünïcode – “quotes” 你好",
        "שלום",
        "می\u200cخواهید",
        "👩\u200d🍳",
        "അവന\u0d4d\u200d വ",
    ):
        assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "␛[2J"),
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("a\r\nb\rc", "a\nb␍c"),
        ("\u202egpj.exe", "⟨U+202E⟩gpj.exe"),
        ("zero\u200bwidth", "zero⟨U+200B⟩width"),
        ("ta\u200cke", "ta⟨U+200C⟩ke"),
        ("\u200d", "⟨U+200D⟩"),
        ("a" + 3 * "\u200d" + "b", "a" + 3 * "⟨U+200D⟩" + "b"),
        ("\x7f\x9b", "␡⟨U+009B⟩"),
        ("\ud800", "\ufffd"),
    ],
)
def test_acting_characters_become_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("--out /home/anna/runs/a", "--out ~/runs/a"),
        ("C:\\Users\\anna\\runs", "~\\runs"),
        ("model=/root/models/x", "model=~/models/x"),
        ("https://anna:secret@example.org/x", "https://…@example.org/x"),
        ("HF_TOKEN=hf_abcdefghijklmnopqrst", "HF_TOKEN=[token]"),
        ("grue run cooking16 --out runs/homely", "grue run cooking16 --out runs/homely"),
    ],
)
def test_redaction(text: str, left: str) -> None:
    assert redact(text) == left


def test_a_chat_model_that_is_named_by_its_path_names_no_home() -> None:
    assert policy_title("api:/home/anna/models/x.gguf") == "api:~/models/x.gguf"


def test_numbers_as_people_read_them() -> None:
    assert (percent(0.931), percent(1.0, 0), percent(None)) == ("93.1%", "100%", "–")
    assert interval_text((-0.021, 0.5)) == "−2.1 to 50.0"
    assert interval_text((-0.0004, 0.03)) == "0.0 to 3.0"
    assert interval_text(None) == ""
    assert (fixed(-0.0001, 3), number(999.6), number(-999.7), number(999.4)) == ("0.000", "1,000", "−1,000", "999")
    assert (signed(51.34), signed(-0.2), signed(0.0), signed(-0.04)) == ("+51.3", "−0.2", "0.0", "0.0")
    assert [number(value) for value in (61440.0, 0.01234, 1234.5, -3.0, None, float("nan"))] == [
        "61,440",
        "0.0123",
        "1,234",
        "−3",
        "–",
        "nan",
    ]
    assert [duration(s) for s in (0.44, 47.6, 512.3, 7500, None, -1.0)] == [
        "0.4 s",
        "48 s",
        "8 min 32 s",
        "2 h 05 min",
        "–",
        "–",
    ]
    assert one_line("a\n b\x1b " + "c" * 300, most=10) == "a b␛ cccc…"


def test_what_counts_as_a_number() -> None:
    assert as_number(3) == 3.0
    for value in (True, None, "3", float("nan"), float("inf"), 10**400, [1]):
        assert as_number(value) is None


def test_markup_escapes_what_is_not_markup() -> None:
    assert tag("p", "<b>", tag("b", "x & y"), None, 3) == "<p>&lt;b&gt;<b>x &amp; y</b>3</p>"
    assert tag("a", "x", href='"><script>', class_="k", hidden=True, title=None) == (
        '<a href="&quot;&gt;&lt;script&gt;" class="k" hidden>x</a>'
    )
    assert tag("meta", name="x", http_equiv="y") == '<meta name="x" http-equiv="y">'
    assert join(["<", Html("<")], ", ") == "&lt;, <"
