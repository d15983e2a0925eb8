"""The tokenizer of a model, and what a transcript needs of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from grue.config import ModelConfig
from grue.errors import ModelError, first_line
from grue.models.sources import safe_options, source_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from grue.prompts.tokens import Encoder

# tokenizer.json, tokenizer_config.json, special_tokens_map.json, vocab.txt, spiece.model, qwen.tiktoken, ...
FILES = ("*token*", "*vocab*", "*.model", "*tekken*")
PROBE = "You see a key.\n> take key\n"


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to `model.name`. A missing pad token does not matter: nothing here reads padding."""
    from transformers import AutoTokenizer

    _check_present(source_of(config))
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source_of(config), **safe_options(config))
    except (OSError, ValueError, KeyError, ImportError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"cannot load the tokenizer of {config.name!r}: {first_line(error)}",
            hint="its files (tokenizer.json, or those of its kind) must be beside config.json, and complete",
        ) from error
    return tokenizer


def _check_present(name: str) -> None:
    """ModelError for a folder without any file of a tokenizer: transformers makes an empty one, or fails obscurely."""
    folder = Path(name)
    if folder.is_dir() and not any(file for pattern in FILES for file in folder.glob(pattern)):
        raise ModelError(f"{name} has no tokenizer", hint=f"tokenizer.save_pretrained({name!r}) puts it there")


def check_tokenizer(name: str, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """ModelError where a transcript cannot be written in these tokens, or the model does not know all of them."""
    ids: list[int] = tokenizer.encode(PROBE, add_special_tokens=False)
    # turns are lines: a tokenizer that drops newlines cannot say where an action ends
    kept = str(tokenizer.decode(ids)).count("\n") == PROBE.count("\n")
    if not kept or (tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids):
        raise ModelError(
            f"the tokenizer of {name!r} cannot write a transcript: it loses {'a letter' if kept else 'newlines'}",
            hint="choose a model whose tokenizer keeps text as it is, such as a byte-level one",
        )
    rows = _rows(model)
    # added tokens are not counted: some tokenizers hold more of them than their model was given rows for
    highest = max(tokenizer.vocab_size - 1, *ids)
    if highest >= rows:
        raise ModelError(
            f"the tokenizer of {name!r} has ids up to {highest}, and the model has {rows} embeddings",
            hint="the two are of different models: put the right tokenizer beside the weights",
        )


def check_prompt(name: str, encoder: Encoder, model: PreTrainedModel) -> None:
    """ModelError if the prompt has a token without an embedding in the model, or a game's text may have one."""
    rows = _rows(model)
    ids = {*encoder.task("key", 9), *encoder.observation("key", ("take key",)), *encoder.action("take key")}
    words = {*map(int, encoder.tokenizer.added_tokens_decoder)} - encoder.special
    if lost := [number for number in sorted(ids | words) if number >= rows]:
        token = encoder.tokenizer.convert_ids_to_tokens(lost[0])
        what = "the prompt" if lost[0] in ids else "a text"
        raise ModelError(
            f"{what} for {name!r} may have the token {token!r} ({lost[0]}), and the model has {rows} embeddings",
            hint="the token was added only to the tokenizer: save the model again with resize_token_embeddings, or "
            "set policy.template=plain if it comes from the template",
        )


def check_context(name: str, model: PreTrainedModel, context: int) -> None:
    """ModelError if a segment may outgrow the positions that the model knows, or those that it rotates alike."""
    config: Any = model.config.get_text_config()
    known = getattr(config, "max_position_embeddings", None) or getattr(config, "max_target_positions", None)
    if known is not None and context > known:
        raise ModelError(
            f"{name!r} knows {known} positions, fewer than model.context={context}", hint=f"set model.context={known}"
        )
    alike = _positions_rotated_alike(config)
    if alike is not None and context > alike:
        raise ModelError(
            f"{name!r} rotates its keys differently once a text is longer than {alike} tokens, so that cached ones "
            f"would be wrong with model.context={context}",
            hint=f"set model.context={alike}",
        )


def _positions_rotated_alike(config: Any) -> int | None:
    """Positions up to which a model rotates keys the same way; None if that holds for all that it knows.

    With "longrope" (Phi 3 and 4) transformers uses other frequencies for a whole pass as soon as one of its rows is
    longer. With "dynamic" it does so beyond the positions that the model knows, where nothing is read.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    per_layer = [inner for inner in rope.values() if isinstance(inner, dict)]
    switching = [one for one in per_layer or [rope] if one.get("rope_type") == "longrope"]
    return min((int(one["original_max_position_embeddings"]) for one in switching), default=None)


def _rows(model: PreTrainedModel) -> int:
    weight = model.get_input_embeddings().weight
    return int(weight.shape[0])  # type: ignore[index]
