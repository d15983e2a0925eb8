"""The base's tokenizer: byte-level BPE whose merges may cross spaces inside a sentence, with whole food names.

Ordinary word-bounded BPE needs about 1,100 tokens for an episode; letting merges cross spaces needs about 300,
and every step of training and play is that much cheaper. Food names are single tokens with their leading space, so
that copying one from the cookbook is copying one token, whatever sentence it stands in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def train_tokenizer(texts: Iterable[str], vocabulary: int, whole: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of `vocabulary` entries in all, the names in `whole` (with a leading space) among them."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    names = [AddedToken(f" {name}", normalized=False, special=False) for name in whole]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[^.,:!?\n]*[.,:!?\n]+|[^.,:!?\n]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "<bos>", "<eos>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(names),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # names are cut out of the text before training as well, else merges would be spent on them
    cut = re.compile("(" + "|".join(re.escape(n.content) for n in sorted(names, key=lambda n: -len(n.content))) + ")")
    parts = (part for text in texts for part in (cut.split(text)[::2] if names else [text]))
    tokenizer.train_from_iterator(parts, trainer)
    tokenizer.add_tokens(names)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
    )
