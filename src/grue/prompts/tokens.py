"""Text to ids, one way only. Pieces are encoded apart and concatenated as ids, never re-encoded.

Encoding the pieces apart makes the ids of an action the same in the trie, in the rollout and in training.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from grue.prompts.transcript import render_action, render_observation, render_task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Encoder:
    """Encodes the three kinds of pieces of a transcript with a Hugging Face tokenizer.

    Game text can never produce special tokens: they are split out of the text before encoding.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        # the Rust tokenizer itself is several times faster than its wrapper; a copy, as the setting is the tokenizer's
        self._fast = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()) if tokenizer.is_fast else None
        if self._fast is not None:
            self._fast.encode_special_tokens = True
        self._bos: tuple[int, ...] = () if tokenizer.bos_token_id is None else (int(tokenizer.bos_token_id),)
        self.action = lru_cache(maxsize=20_000)(self._action)
        self.observation = lru_cache(maxsize=10_000)(self._observation)

    def _encode(self, text: str) -> tuple[int, ...]:
        if self._fast is not None:
            return tuple(self._fast.encode(text, add_special_tokens=False).ids)
        return tuple(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def task(self, goal: str, limit: int) -> tuple[int, ...]:
        return self._bos + self._encode(render_task(goal, limit))

    def _observation(self, text: str) -> tuple[int, ...]:
        return self._encode(render_observation(text))

    def _action(self, action: str) -> tuple[int, ...]:
        return self._encode(render_action(action))
