"""The pieces of a tokenizer's chat template that go between what the game says and what the policy answers.

A chat is append-only, like a plain transcript: every answer follows exactly the text after which it was written. Some
templates show past answers in another form (Qwen 3 drops their thoughts): we keep the form of the latest answer.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from grue.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_THOUGHT, _CLOSED = "<think>", "</think>"
_SAID, _DONE, _NEXT = "the-first-message", "the-first-answer", "the-second-message"
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
    first = [{"role": "user", "content": _SAID}]
    later = [*first, {"role": "assistant", "content": _DONE}, {"role": "user", "content": _NEXT}]
    try:
        template = tokenizer.get_chat_template()
        if "strftime_now" in template:
            template = _CLOCK + template
        options = {**_OPTIONS, "chat_template": template, "add_generation_prompt": True}
        opened, longer = (str(tokenizer.apply_chat_template(chat, **options)) for chat in (first, later))
    except Exception as error:  # a template is third-party code: it may raise anything
        raise ModelError(
            f"the chat template of {name!r} fails: {error}", hint="set policy.template=plain, or another model.name"
        ) from error
    before, said, to_assistant = opened.partition(_SAID)
    earlier, done, rest = longer.partition(_DONE)
    to_user, following, again = rest.partition(_NEXT)
    start, _, given = earlier.partition(_SAID)  # given: what comes before a past answer
    # a first message that is written otherwise once another follows would be changed after it has been read
    alike = start == before and again == to_assistant
    if not (said and done and following and to_assistant and to_user and alike):
        raise ModelError(
            f"the chat template of {name!r} cannot be cut into messages and answers", hint="set policy.template=plain"
        )
    if given.startswith(to_assistant):  # GPT-OSS lets the model name its channel
        to_assistant = given
    if to_assistant.count(_THOUGHT) > to_assistant.count(_CLOSED):  # R1 and QwQ always begin a thought
        to_assistant = f"{to_assistant.rstrip()}\n\n{_CLOSED}\n\n"
    return ChatPieces(before, to_assistant, to_user)
