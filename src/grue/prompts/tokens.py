"""Text to ids, one way only. Pieces are encoded apart and concatenated as ids, never re-encoded.

Encoding the pieces apart makes the ids of an action the same in the trie, in the rollout and in training. What the game
says is text and nothing else: special tokens come from the template alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from grue.config import PolicyConfig
from grue.errors import ModelError
from grue.prompts.chat import ChatPieces, chat_pieces
from grue.prompts.samples import COMMON, STRANGE
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
from grue.prompts.untrusted import Untrusted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMAT = 2  # of the prompts that this module makes; part of the fingerprint


class Joint(NamedTuple):
    """A place where text of the game, or of an answer, follows the template's text."""

    ids: tuple[int, ...]  # of the template's text
    space: str  # trailing spaces of that text: tokenizers join them to the next word
    encode: Callable[[str], tuple[int, ...]]  # encodes what follows

    def then(self, text: str) -> tuple[int, ...]:
        """The ids of `text` at this place."""
        return self.encode(self.space + text)


class Encoder:
    """Encodes the pieces of a transcript with a Hugging Face tokenizer, plain or in its chat template.

    Game text can never produce `special` tokens: they are split out of the text before encoding. So are added tokens
    that mark turns or parts of an answer although the tokenizer calls them ordinary, such as DeepSeek's <｜User｜> and
    Qwen3's <think>.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: PolicyConfig | None = None) -> None:
        self.tokenizer = tokenizer
        self.prompt = prompt or PolicyConfig()
        self._chat = chat_pieces(tokenizer) if self.prompt.template == "chat" else None
        self._markers = _markers(tokenizer, self._chat)
        self._bos: tuple[int, ...] = () if tokenizer.bos_token_id is None else (int(tokenizer.bos_token_id),)
        self.special = frozenset((*tokenizer.all_special_ids, *_special_added(tokenizer), *self._markers))
        self._text = Untrusted(tokenizer, self._markers, self.special)
        self._marker = THINK if self.prompt.kind == "think" else ACT
        self._newline = self._line_end()
        self._close: tuple[int, ...] = self._newline
        self._reopen: tuple[int, ...] = ()
        self._lead = ""  # the part of the template that is encoded together with the user's text before it
        if self._chat is not None:
            self._before = self._joint(self._chat.before, first=True)
            self._lead, to_assistant = self._led(self._chat.to_assistant)
            self._to_assistant, self._to_user = self._joint(to_assistant), self._joint(self._chat.to_user)
            self._close, self._reopen = self._cut(self._to_user.ids)
        self.action = lru_cache(maxsize=20_000)(self._action)
        self.observation = lru_cache(maxsize=10_000)(self._observation)
        self.ends = lru_cache(maxsize=200_000)(self._ends)

    @property
    def fingerprint(self) -> str:
        """Hashes with hyphens between them: of what besides settings decides a prompt's ids, and of ids of two samples.

        Compare them with `storage.checkpoint.prompt_change`: older ones lack the last.
        """
        template = self.tokenizer.chat_template if self._chat else None
        vocabulary = hashlib.sha256(json.dumps(self.tokenizer.get_vocab(), sort_keys=True).encode()).hexdigest()
        form: list[Any] = [FORMAT, self.prompt.template, self._chat, template, vocabulary, self._bos]
        if self._markers:
            form.append(sorted(self._markers))
        joints = () if self._chat is None else (self._before, self._to_assistant, self._to_user)
        spaces = [joint.space for joint in joints]
        if self._text.spaced or any(spaces):  # otherwise prompts, and so the hash, are as before joints existed
            form.append([self._text.spaced, spaces])
        if self._lead:
            form.append(self._lead)
        if type(self) is not Encoder:  # a user's own class makes other prompts
            form.append(f"{type(self).__module__}.{type(self).__qualname__}")
        sample = [self._text.opening(COMMON), self._text.following(COMMON), self._newline, self._close, self._reopen]
        sample += [part for joint in joints for part in (joint.ids, joint.then(COMMON))]
        strange = [self._text.opening(STRANGE), self._text.following(STRANGE)]
        return f"{_digest(form)}-{_digest(sample)[:16]}-{_digest(strange)[:16]}"

    def task(self, goal: str, limit: int) -> tuple[int, ...]:
        """What comes before the first observation."""
        if self._chat is None:
            return self._bos + self._text.opening(render_task(goal, limit))
        return self._before.ids + self._before.then(render_task(goal, limit) + ASK[self._marker])

    def text(self, ids: Sequence[int]) -> str:
        """What the policy wrote: the first line, without special tokens."""
        words = [token for token in ids if token not in self.special]
        # not cleaned up: some tokenizers would join punctuation to the word before it, which makes it another action
        text = self.tokenizer.decode(words, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text).partition("\n")[0].strip()

    def closing(self, written: Sequence[int]) -> tuple[int, ...]:
        """The ids that end an action whose text the policy wrote itself; () if it has already written them."""
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
        return (() if broken else self._newline) + self._text.following(ACT)

    def unlearnt(self, action: str) -> tuple[int, ...]:
        """All ids of a turn that does `action` without a thought."""
        return (self.after_thought(()) if self._marker == THINK else ()) + self.action(action)

    def _ends(self, token: int) -> bool:
        """Does this token end a line that the policy writes?"""
        return token in self.special or self._breaks(token)

    def _breaks(self, token: int) -> bool:
        return "\n" in str(self.tokenizer.decode([token]))

    def _observation(self, text: str, actions: tuple[str, ...] | None = None, first: bool = False) -> tuple[int, ...]:
        """An observation up to where the policy writes. `first`: it is in the same message as the task."""
        if self._chat is None:
            return self._text.following(render_observation(text, actions, self._marker))
        scene = render_scene(text, actions) + self._lead
        said = self._text.following(scene) if first else self._reopen + self._to_user.then(scene)
        marker = self._to_assistant.then(THINK) if self._marker == THINK else ()
        return said + self._to_assistant.ids + marker

    def _action(self, action: str) -> tuple[int, ...]:
        if self._chat is None:
            return self._text.following(render_action(action))
        line = one_line(action)
        said = self._text.following(f" {line}") if self._marker == THINK else self._to_assistant.then(line)
        return said + self._close

    def _line_end(self) -> tuple[int, ...]:
        """A newline after a word: tokenizers that begin every text with a space add none there."""
        word, line = self._text.opening("a"), self._text.opening("a\n")
        return line[len(word) :] if line[: len(word)] == word != line else self._text.opening("\n")

    def _joint(self, piece: str, *, first: bool = False) -> Joint:
        """The end of a template's piece, and how text after it is encoded. `first`: the piece begins the chat.

        If possible, as the tokenizer encodes both at once: the piece's trailing spaces may go with the next word.
        """
        trusted = self._trusted if first else self._trusted_behind
        for end in (piece.rstrip(" "), piece):
            space = piece[len(end) :]
            for encode in (self._text.following, self._text.opening):
                if self._trusted(f"{piece}a") == self._trusted(end) + encode(f"{space}a"):
                    return Joint(trusted(end), space, encode)
        return Joint(trusted(piece), "", self._text.following)

    def _led(self, piece: str) -> tuple[str, str]:
        """(newlines that go with the text before a piece, the rest): many tokenizers have one token for ".\\n"."""
        rest = piece.lstrip("\n")
        lead = piece[: len(piece) - len(rest)]

        def is_joined(lead: str, rest: str) -> bool:
            return all(
                self._trusted(f"{end}{piece}") == self._trusted(f"{end}{lead}") + self._trusted_behind(rest)
                for end in ("a", ".")
            )

        moves = bool(lead and rest) and not is_joined("", piece) and is_joined(lead, rest)
        return (lead, rest) if moves else ("", piece)

    def _cut(self, ids: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(ids that end an answer, ids that open the next message): cut after the first special token or line."""
        ends = [place for place, token in enumerate(ids) if token in self.special]
        ends += [place for place, token in enumerate(ids) if self._breaks(token)]
        if not ends:
            raise ModelError(
                f"the chat template of {self.tokenizer.name_or_path!r} ends answers with neither a special token nor a "
                "line break",
                hint="set policy.template=plain",
            )
        return ids[: ends[0] + 1], ids[ends[0] + 1 :]

    def _trusted(self, text: str) -> tuple[int, ...]:
        """Text of the template, whose special tokens are meant."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def _trusted_behind(self, text: str) -> tuple[int, ...]:
        """Like `_trusted`, for text of the template that follows a message."""
        word, both = self._trusted("a"), self._trusted(f"a{text}")
        return both[len(word) :] if self._text.spaced and both[: len(word)] == word else self._trusted(text)


def _digest(form: list[Any]) -> str:
    return hashlib.sha256(json.dumps(form, sort_keys=True).encode()).hexdigest()


def _special_added(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    return {int(number) for number, token in tokenizer.added_tokens_decoder.items() if token.special}


def _markers(tokenizer: PreTrainedTokenizerBase, chat: ChatPieces | None) -> set[int]:
    """Added tokens not declared special that still are not text: <such>, or chat markers such as [INST]."""
    pieces = "".join(chat or ())
    added = {int(number): token for number, token in tokenizer.added_tokens_decoder.items() if not token.special}
    return {number for number, token in added.items() if _marks(token.content, pieces)}


def _marks(content: str, pieces: str) -> bool:
    # plain words and white space, such as Gemma's line breaks, are text wherever they occur
    sign = content in pieces and not content.isalnum() and any(map(str.isalpha, content))
    # the pieces hold the marks of some roles only, and a chat may have others, such as [|system|] or [TOOL]
    form = r"<[^<>\s]+>|\[[^\[\]\s]+\]" if pieces else r"<[^<>\s]+>"
    return sign or re.fullmatch(form, content) is not None
