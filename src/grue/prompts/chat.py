"""The pieces of a tokenizer's chat template that go between what the game says and what the policy answers.

A chat is append-only, like a plain transcript: every answer follows exactly the text after which it was written. Some
templates show past answers in another form (Qwen 3 drops their thoughts): we keep the form of the latest answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from grue.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_THOUGHT, _CLOSED = "<think>", "</think>"
# messages and answers in turn
_SAID = ("the-first-message", "the-first-answer", "the-second-message", "the-second-answer", "the-third-message")
# variables that templates read besides the messages: no thoughts of their own, and a date that never changes
_DAY = datetime(2024, 7, 26)
_OPTIONS: dict[str, Any] = {"tokenize": False, "enable_thinking": False, "date_string": f"{_DAY:%d %b %Y}"}
# other templates call strftime_now(format), which reads the clock: a macro of the same name replaces it. The newline
# is removed with the block before it, so the rest is parsed as if it began the template
_DATES = {code: _DAY.strftime(f"%{code}") for code in "aAbBdjmyYHIMSp"}
_DATES |= {
    "F": f"{_DAY:%Y-%m-%d}",
    "D": f"{_DAY:%m/%d/%y}",
    "T": "00:00:00",
    "R": "00:00",
    "e": "26",
    "-d": "26",
    "-m": "7",
}
_CODES = "".join(f"|replace('%{code}', '{value}')" for code, value in _DATES.items())
_CLOCK = "{% macro strftime_now(format) %}{{ format" + _CODES + " }}{% endmacro %}\n"


class ChatPieces(NamedTuple):
    """Trusted text: its special tokens count."""

    before: str  # the first message
    to_assistant: str  # between a message and its answer
    to_user: str  # between an answer and the next message


def chat_pieces(tokenizer: PreTrainedTokenizerBase) -> ChatPieces:
    """Cut the template at a message and its answer. ConfigError without a template, ModelError if it cannot be cut."""
    name = tokenizer.name_or_path
    if not tokenizer.chat_template:
        raise ConfigError(f"the tokenizer of {name!r} has no chat template", hint="set policy.template=plain")
    chat = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(_SAID)]
    try:
        template = tokenizer.get_chat_template()
        if "strftime_now" in template:
            template = _CLOCK + template
        options = {**_OPTIONS, "chat_template": template, "add_generation_prompt": True}
        opened, longer, longest = (
            _between(str(tokenizer.apply_chat_template(chat[:length], **options)), _SAID[:length])
            for length in (1, 3, 5)
        )
    except Exception as error:  # a template is third-party code: it may raise anything
        raise ModelError(
            f"the chat template of {name!r} fails: {error}", hint="set policy.template=plain, or another model.name"
        ) from error
    before, to_assistant = opened or ("", "")
    _, given, to_user, _ = longer or ("", "", "", "")  # given: what comes before a past answer
    # whatever is written otherwise once more follows, or is counted, would be changed after it has been read
    alike = longer == [before, given, to_user, to_assistant]
    alike = alike and longest == [before, given, to_user, given, to_user, to_assistant]
    # past answers may lack a thought, name a channel or stand behind other spaces; no message may end otherwise
    past, latest = ("".join(text.split()) for text in (given, to_assistant))
    alike = alike and (past.startswith(latest) or latest.startswith(past))
    if not (to_assistant and to_user and alike):
        raise ModelError(
            f"the chat template of {name!r} cannot be cut into messages and answers", hint="set policy.template=plain"
        )
    if given.startswith(to_assistant):  # GPT-OSS lets the model name its channel
        to_assistant = given
    if to_assistant.count(_THOUGHT) > to_assistant.count(_CLOSED):  # R1 and QwQ always begin a thought
        to_assistant = f"{to_assistant.rstrip()}\n\n{_CLOSED}\n\n"
    return ChatPieces(before, to_assistant, to_user)


def _between(chat: str, said: Sequence[str]) -> list[str]:
    """What a template writes before, between and after what was said; [] if it does not say all of it in this order."""
    found = []
    for text in said:
        before, there, chat = chat.partition(text)
        if not there:
            return []
        found.append(before)
    return [*found, chat]
