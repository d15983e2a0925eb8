"""Tokenizers of the kinds that models come with, small, and chat templates of the forms that they have."""

from __future__ import annotations

import json
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import tiny

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# of Llama 3: letters with what stands before them, digits by three, lines with the space around them
REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
)
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
PHI3 = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
GPT_OSS = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<|start|>user<|message|>' + m.content + '<|end|>' }}"
    "{% else %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<|user|>' + m.content }}"
    "{% else %}{{ '<|assistant|>' + m.content + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}"
)
LINES = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '### Instruction:\n' + m.content + '\n\n### Response:\n' }}"
    "{% else %}{{ m.content + '\n\n' }}{% endif %}{% endfor %}"
)
# a plain line behind what the user says, which goes with its last sign in one token
TULU = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<|user|>\n' + m.content + '\n' }}"
    "{% else %}{{ '<|assistant|>\n' + m.content + '<|endoftext|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
NAMES = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ 'USER: ' + m.content + ' ASSISTANT:' }}"
    "{% else %}{{ ' ' + m.content + ' ' }}{% endif %}{% endfor %}"
)


@cache
def texts() -> tuple[str, ...]:
    """What the toy prints and what is done in it."""
    played = [turn for episode in tiny.scripted("gold") for turn in episode.turns]
    return (
        "\n".join(f"{turn.observation.text}\n> {turn.action}" for turn in played),
        "user assistant You have 9 steps",
    )


def byte_level(special: list[str], *, prefix: bool = False, added: tuple[str, ...] = ()) -> Tokenizer:
    """As of Qwen and Llama 3, with `prefix` as of some GPT-2s and RoBERTas."""
    tokenizer = Tokenizer(models.BPE())
    byte = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=prefix)
    split = pre_tokenizers.Split(Regex(REGEX), "isolated")
    tokenizer.pre_tokenizer = byte if prefix else pre_tokenizers.Sequence([split, byte])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts(), trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in special])
    tokenizer.add_tokens([AddedToken(one, special=False, normalized=False) for one in added])
    return tokenizer


def unigram(scheme: str, special: list[str]) -> Tokenizer:
    """As transformers 5 reads SentencePiece models: `scheme` says whether texts begin with a space."""
    words = {word for text in texts() for word in text.replace("\n", " ").split()}
    letters = {letter for word in words for letter in word} | {"▁"}
    scored = [(f"▁{word}", -1.0 - 0.01 * len(word)) for word in sorted(words)]
    scored += [(word, -2.0) for word in sorted(words - letters)] + [(letter, -6.0) for letter in sorted(letters)]
    control = [(one, 0.0) for one in special]  # control pieces have no cost, and stand in the vocabulary like others
    pieces = [("<unk>", 0.0), *control, *((one, 0.0) for one in BYTES), *scored]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    strip = [] if scheme == "never" else [decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    tokenizer.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in special])
    return tokenizer


def legacy(special: list[str]) -> Tokenizer:
    """BPE of SentencePiece's, with a normalizer that puts a space before every text, as of Mistral 7B and Zephyr."""
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "removed"), pre_tokenizers.Split("▁", "merged_with_next")]
    )
    learner.train_from_iterator(texts(), trainers.BpeTrainer(vocab_size=300, show_progress=False))
    learnt = learner.get_vocab()
    merges = [tuple(pair) for pair in _merges(learner)]
    order = ["<unk>", *special, *BYTES, *sorted(learnt, key=learnt.__getitem__)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(order))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in special])
    return tokenizer


def _merges(tokenizer: Tokenizer) -> list[list[str]]:
    found: list[list[str]] = json.loads(tokenizer.to_str())["model"]["merges"]
    return found


def wrapped(backend: Tokenizer, template: str | None = None, **named: str) -> PreTrainedTokenizerFast:
    """As transformers loads it."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **named)
    tokenizer.chat_template = template
    return tokenizer


@cache
def kind(name: str) -> PreTrainedTokenizerFast:
    """One of KINDS."""
    return _MAKE[name]()


_SENTENCES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_OSS = ["<|start|>", "<|end|>", "<|channel|>", "<|message|>"]


def _phi3() -> PreTrainedTokenizerFast:
    signs = [
        AddedToken(one, special=True, normalized=False, rstrip=True) for one in ("<|user|>", "<|assistant|>", "<|end|>")
    ]
    tokenizer = wrapped(legacy(["<s>", "</s>"]), PHI3, **_SENTENCES)
    tokenizer.add_special_tokens({"additional_special_tokens": signs})
    return tokenizer


_MAKE = {
    "llama 2": lambda: wrapped(unigram("always", ["<s>", "</s>"]), LLAMA2, **_SENTENCES),
    "first": lambda: wrapped(unigram("first", ["<s>", "</s>"]), LLAMA2, **_SENTENCES),
    "zephyr": lambda: wrapped(legacy(["<s>", "</s>"]), ZEPHYR, **_SENTENCES),
    "zephyr, unigram": lambda: wrapped(unigram("always", ["<s>", "</s>"]), ZEPHYR, **_SENTENCES),
    "phi 3": _phi3,
    "never": lambda: wrapped(unigram("never", ["<s>", "</s>", *_CHATML]), CHATML, eos_token="<|im_end|>"),
    "prefix": lambda: wrapped(byte_level(_CHATML, prefix=True), CHATML, eos_token="<|im_end|>"),
    "qwen": lambda: wrapped(byte_level(_CHATML), CHATML, eos_token="<|im_end|>"),
    "tulu": lambda: wrapped(byte_level([*_CHATML, "<|user|>", "<|assistant|>"]), TULU, eos_token="<|endoftext|>"),
    "gpt-oss": lambda: wrapped(byte_level(_OSS), GPT_OSS, eos_token="<|end|>"),
    "r1": lambda: wrapped(
        byte_level(["<s>", "</s>"], added=("<|user|>", "<|assistant|>", "<think>", "</think>")),
        R1,
        bos_token="<s>",
        eos_token="</s>",
    ),
    "lines": lambda: wrapped(unigram("always", ["<s>", "</s>"]), LINES, **_SENTENCES),
    "names": lambda: wrapped(byte_level([]), NAMES),
}
KINDS = tuple(_MAKE)
