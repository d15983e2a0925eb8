"""Encode game text and action names as ids that are plain text and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from itertools import chain
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from grue.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BYTE = "<0x[0-9A-F]{2}>"


class Untrusted:
    """Encodes text such that the tokenizer finds no special tokens, nor those of `markers`, in it.

    Llama 2 and other SentencePiece tokenizers begin every text with a space. So text is encoded either as `opening`, at
    the start of something, or as `following` a line break or a letter. For most tokenizers the two are the same.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, markers: Collection[int], special: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._fast = _splitting(tokenizer, markers) if tokenizer.is_fast else None
        self._special = {*special}
        self._forged, self._always = _pieces_of_its_own(self._fast, tokenizer, special)
        self._break = self._encode("\n")
        both = self._encode("\na")
        self.spaced = both[: len(self._break)] == self._break and both[len(self._break) :] != self._encode("a")

    def opening(self, text: str) -> tuple[int, ...]:
        """The ids of `text` at the start of a text."""
        return self._joined(text, self._encode)

    def following(self, text: str) -> tuple[int, ...]:
        """The ids of `text` after other text."""
        return self._joined(text, self._behind)

    def _joined(self, text: str, begin: Callable[[str], tuple[int, ...]]) -> tuple[int, ...]:
        if not self._always:
            ids = begin(text)
            if self._special.isdisjoint(ids):
                return ids
        first, *others = _harmless(text, self._forged)
        return begin(first) + tuple(chain.from_iterable(map(self._behind, others)))

    def _behind(self, text: str) -> tuple[int, ...]:
        return self._encode("\n" + text)[len(self._break) :] if self.spaced else self._encode(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        try:
            if self._fast is not None:
                return tuple(self._fast.encode(text, add_special_tokens=False).ids)
            return tuple(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
        except TypeError as error:  # the tokenizer's own message does not show the text
            raise DataError(
                f"{text[:60]!r} cannot be encoded as text", hint="it may hold half characters (lone surrogates)"
            ) from error


def _harmless(text: str, forged: re.Pattern[str]) -> list[str]:
    """`text` cut into parts in which `forged` finds nothing."""
    parts, start = [], 0
    while found := forged.search(text, start):
        parts.append(text[start : found.start() + 1])
        start = found.start() + 1
    return [*parts, text[start:]]


def _splitting(tokenizer: PreTrainedTokenizerBase, markers: Collection[int]) -> Tokenizer:
    """The Rust tokenizer itself, which is several times faster than its wrapper, set to split special tokens.

    A copy, since splitting is a setting of the tokenizer object.
    """
    written = tokenizer.backend_tokenizer.to_str()
    if markers:
        form = json.loads(written)
        for token in form["added_tokens"]:
            token["special"] = token["special"] or token["id"] in markers
        written = json.dumps(form)
    fast = Tokenizer.from_str(written)
    fast.encode_special_tokens = True
    fast.no_truncation()  # the files may ask for truncation and padding
    fast.no_padding()
    return fast


def _pieces_of_its_own(
    fast: Tokenizer | None, tokenizer: PreTrainedTokenizerBase, special: Collection[int]
) -> tuple[re.Pattern[str], bool]:
    """A pattern of text to cut apart, as the model's own pieces include special tokens, and whether to do so always.

    A Unigram model finds its control and byte pieces in any text. Other models, if trained with such pieces, may find
    them when looking up words; that is rare, so their text is cut only when one has been found.
    """
    always = fast is not None and json.loads(fast.to_str())["model"]["type"] == "Unigram"
    contents = [str(tokenizer.convert_ids_to_tokens(number)) for number in special]
    words = sorted((one for one in contents if len(one) > 1), key=len, reverse=True)
    # a normaliser may lower-case text
    return re.compile("|".join([_BYTE, *map(re.escape, words)]), re.NOFLAG if always else re.IGNORECASE), always
