"""Text to ids, one way only. Pieces are encoded apart and concatenated as ids, never re-encoded.

Encoding the pieces apart makes the ids of an action the same in the trie, in the rollout and in training. What the game
says is text and nothing else: special tokens come from the template alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from grue.config import PolicyConfig
from grue.errors import DataError
from grue.prompts.chat import ChatPieces, chat_pieces
from grue.prompts.transcript import (
    ACT,
    ASK,
    THINK,
    one_line,
    render_action,
    render_observation,
    render_scene,
    render_task,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMAT = 2  # of the prompts that this module makes; part of the fingerprint


class Encoder:
    """Encodes the pieces of a transcript with a Hugging Face tokenizer, plain or in its chat template.

    Game text can never produce special tokens: they are split out of the text before encoding. So are added tokens that
    mark turns or parts of an answer, though their tokenizer calls them ordinary, as DeepSeek's its <｜User｜> and
    Qwen3's its <think>.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: PolicyConfig | None = None) -> None:
        self.tokenizer = tokenizer
        self.prompt = prompt or PolicyConfig()
        self._chat = chat_pieces(tokenizer) if self.prompt.template == "chat" else None
        self._markers = _markers(tokenizer, self._chat)
        self._fast = _splitting(tokenizer, self._markers) if tokenizer.is_fast else None
        self._bos: tuple[int, ...] = () if tokenizer.bos_token_id is None else (int(tokenizer.bos_token_id),)
        self._special = {*tokenizer.all_special_ids, *_special_added(tokenizer), *self._markers}
        self._marker = THINK if self.prompt.kind == "think" else ACT
        self._newline = self._line_end()
        self._close, self._reopen = (self._newline, ()) if self._chat is None else self._cut(self._chat)
        self.action = lru_cache(maxsize=20_000)(self._action)
        self.observation = lru_cache(maxsize=10_000)(self._observation)
        self.ends = lru_cache(maxsize=200_000)(self._ends)

    @property
    def fingerprint(self) -> str:
        """Hash of what decides a prompt's ids beside the settings. Merges are taken to go with the vocabulary."""
        template = self.tokenizer.chat_template if self._chat else None
        vocabulary = hashlib.sha256(json.dumps(self.tokenizer.get_vocab(), sort_keys=True).encode()).hexdigest()
        form = [FORMAT, self.prompt.template, self._chat, template, vocabulary, self._bos]
        if self._markers:
            form.append(sorted(self._markers))
        return hashlib.sha256(json.dumps(form, sort_keys=True).encode()).hexdigest()

    def task(self, goal: str, limit: int) -> tuple[int, ...]:
        """What stands before the first observation."""
        if self._chat is None:
            return self._bos + self._encode(render_task(goal, limit))
        return self._trusted(self._chat.before) + self._encode(render_task(goal, limit) + ASK[self._marker])

    def text(self, ids: Sequence[int]) -> str:
        """What the policy wrote: the first line, without special tokens."""
        words = [token for token in ids if token not in self._special]
        return str(self.tokenizer.decode(words, skip_special_tokens=True)).partition("\n")[0].strip()

    def closing(self, written: Sequence[int]) -> tuple[int, ...]:
        """The ids that end an action whose text the policy wrote itself, and that it may have written already."""
        last = written[-1] if written else -1
        closed = last == self._close[-1] if self._chat else last >= 0 and self._breaks(last)
        return () if closed else self._close

    def without_end(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The ids of an action without those that only end it."""
        end = len(ids) - len(self._close)
        return tuple(ids[:end] if end > 0 and tuple(ids[end:]) == self._close else ids)

    def after_thought(self, written: Sequence[int]) -> tuple[int, ...]:
        """The ids between a thought and the action."""
        broken = bool(written) and self._breaks(written[-1])
        return (() if broken else self._newline) + self._encode(ACT)

    def unlearnt(self, action: str) -> tuple[int, ...]:
        """All ids of a turn that does `action` without a thought."""
        return (self.after_thought(()) if self._marker == THINK else ()) + self.action(action)

    def _ends(self, token: int) -> bool:
        """Does a line that the policy writes end with this token?"""
        return token in self._special or self._breaks(token)

    def _breaks(self, token: int) -> bool:
        return "\n" in str(self.tokenizer.decode([token]))

    def _observation(self, text: str, actions: tuple[str, ...] | None = None, first: bool = False) -> tuple[int, ...]:
        """An observation up to where the policy writes. `first`: it stands in the same message as the task."""
        if self._chat is None:
            return self._encode(render_observation(text, actions, self._marker))
        marker = self._encode(THINK) if self._marker == THINK else ()
        said = self._encode(render_scene(text, actions)) + self._trusted(self._chat.to_assistant)
        return (() if first else self._reopen) + said + marker

    def _action(self, action: str) -> tuple[int, ...]:
        if self._chat is None:
            return self._encode(render_action(action))
        lead = " " if self._marker == THINK else ""
        return self._encode(lead + one_line(action)) + self._close

    def _line_end(self) -> tuple[int, ...]:
        """A newline behind a word: tokenizers that begin every text with a space put none there."""
        word, line = self._encode("a"), self._encode("a\n")
        return line[len(word) :] if line[: len(word)] == word != line else self._encode("\n")

    def _cut(self, chat: ChatPieces) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(ids that end an answer, ids that open the next message): cut behind the first special token."""
        ids = self._trusted(chat.to_user)
        first = next((place for place, token in enumerate(ids) if token in self._special), 0)
        return ids[: first + 1], ids[first + 1 :]

    def _encode(self, text: str) -> tuple[int, ...]:
        try:
            if self._fast is not None:
                return tuple(self._fast.encode(text, add_special_tokens=False).ids)
            return tuple(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
        except TypeError as error:  # what the tokenizer says of them does not name them
            raise DataError(
                f"{text[:60]!r} is no text that can be encoded", hint="half characters (lone surrogates) are none"
            ) from error

    def _trusted(self, text: str) -> tuple[int, ...]:
        """Text of the template, whose special tokens are meant."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))


def _special_added(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    return {int(number) for number, token in tokenizer.added_tokens_decoder.items() if token.special}


def _markers(tokenizer: PreTrainedTokenizerBase, chat: ChatPieces | None) -> set[int]:
    """Added tokens that are not called special and yet are no text: <such>, or signs of the chat such as [INST]."""
    pieces = "".join(chat or ())
    added = {int(number): token for number, token in tokenizer.added_tokens_decoder.items() if not token.special}
    return {number for number, token in added.items() if _marks(token.content, pieces)}


def _marks(content: str, pieces: str) -> bool:
    # words alone and white space, such as Gemma's line breaks, are text wherever they stand
    sign = content in pieces and not content.isalnum() and any(map(str.isalpha, content))
    return sign or re.fullmatch(r"<[^<>\s]+>", content) is not None


def _splitting(tokenizer: PreTrainedTokenizerBase, markers: Collection[int]) -> Tokenizer:
    """The Rust tokenizer itself, which is several times faster than its wrapper, made to split special tokens.

    A copy, as what is split is a setting of the tokenizer.
    """
    written = tokenizer.backend_tokenizer.to_str()
    if markers:
        form = json.loads(written)
        for token in form["added_tokens"]:
            token["special"] = token["special"] or token["id"] in markers
        written = json.dumps(form)
    fast = Tokenizer.from_str(written)
    fast.encode_special_tokens = True
    return fast
