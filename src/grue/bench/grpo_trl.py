"""TRL's GRPOTrainer as the baseline of the GRPO benchmark: our games through its environment interface.

A tiny model that never learned to call tools ends every game with its first word. So its generation is constrained to
tool calls that name a valid action, which a model trained on them would write without constraints: the games are then
those that ours plays, turn by turn. Wherever there was a choice, it was made so that TRL is fast:

- its chat template adds a newline and the marker `>` to what the game says, as our transcript does, and lists no
  tools in the prompt, which take some hundred tokens in TRL's own template for Qwen3;
- a call is the JSON that TRL reads, in 18 tokens around the action, split at words and punctuation as tokenizers with
  large vocabularies do; the embedded one, which knows no JSON, would take 56. `SHORT` takes 2, which no model does;
- no reference model, no second pass for old log-probabilities, no gradient checkpointing, one pass over the samples.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from grue.config import Config
from grue.models.load import compute_dtype, load_model
from grue.policy.trie import Node, TrieCache, build_trie
from grue.prompts.transcript import as_said
from grue.types import Observation, Task
from grue.wrappers.trl import GameEnvironment

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Call = tuple[tuple[str, ...], tuple[str, ...]]  # the tokens before an action, and those after it
JSON: Call = (
    ("<tool_call>", "\n", '{"', 'name"', ":", ' "', 'act"', ",", ' "', 'arguments"', ":", ' {"', 'action"', ":", ' "'),
    ('"}}', "\n", "</tool_call>"),
)
SHORT: Call = (("".join(JSON[0]),), ("".join(JSON[1]),))
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'assistant' %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "{{ eos_token }}{% else %}{{ message.content }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


class Seat(GameEnvironment):
    """The adapter's environment, which also exposes the valid actions, to which generation is constrained.

    It shows what our transcript shows: the game's text, tidied, without a list of actions.
    """

    _done = False  # its model has been shown the end of the game

    def _shown(self, observation: Observation) -> str:
        self._done, self._actions = False, observation.actions or ()
        return as_said(observation.text)


@dataclass(slots=True)
class Count:
    """What a trainer has done."""

    turns: int = 0
    read: int = 0  # tokens read while playing
    transcripts: int = 0  # tokens of all finished games
    generating_s: float = 0.0  # inside the model's `generate`
    confining_s: float = 0.0  # of which spent on constraining it, which TRL itself would not do


@dataclass(slots=True)
class Calls:
    """Constrains generation to calls: a transformers logits processor, for the rows of one `generate`."""

    nodes: list[Node]
    count: Count
    started: bool = False

    def __call__(self, ids_BL: torch.Tensor, logits_BV: torch.Tensor) -> torch.Tensor:
        start = time.perf_counter()
        if self.started:
            for row, token in enumerate(ids_BL[:, -1].tolist()):
                node = self.nodes[row]
                if node.tokens:  # else it has ended, and what follows is padding
                    self.nodes[row] = node.child(node.tokens.index(token))
        self.started = True
        allowed = [node.tokens or (0,) for node in self.nodes]
        rows = torch.tensor([row for row, tokens in enumerate(allowed) for _ in tokens])
        columns = torch.tensor([token for tokens in allowed for token in tokens])
        confined_BV = torch.full_like(logits_BV, -torch.inf)
        confined_BV[rows, columns] = logits_BV[rows, columns]
        self.count.read += sum(bool(node.tokens) for node in self.nodes)
        self.count.confining_s += time.perf_counter() - start
        return confined_BV


@dataclass(slots=True)
class TrlSide:
    """A GRPOTrainer that plays and learns one round at a time."""

    trainer: Any
    tries: TrieCache
    end: Node  # what may be written once a game is over: the end of the message
    seats: list[Seat]  # all that the trainer has created
    count: Count = field(default_factory=Count)

    def fresh_count(self) -> Count:
        """Restart the counts from here."""
        self.count = Count()
        return self.count

    def round(self, tasks: Sequence[Task]) -> int:
        """One round on `tasks`, where the plays of a game are adjacent; returns the number of turns played."""
        before = self.count.turns
        self.trainer.train_dataset = rows_of(tasks[:: self.trainer.num_generations])
        self.trainer.train()
        return self.count.turns - before

    def generate(self, plain: Callable[..., torch.Tensor], **inputs: Any) -> torch.Tensor:
        """`plain`, the model's own `generate`, constrained to calls; once a game is over, to ending the message."""
        from transformers import LogitsProcessorList

        seats = [seat for seat in self.trainer.environments if not seat._done]
        nodes = [self.tries(seat._actions) if seat._outcome is None else self.end for seat in seats]
        if len(nodes) != len(inputs["input_ids"]):
            raise RuntimeError(f"TRL generates {len(inputs['input_ids'])} rows, but {len(nodes)} games are running")
        for seat in seats:
            seat._done = seat._outcome is not None
        start = time.perf_counter()
        self.count.turns += sum(not seat._done for seat in seats)
        self.count.read += int(inputs["attention_mask"].sum()) - len(nodes)  # the last ones are counted by `Calls`
        found = plain(logits_processor=LogitsProcessorList([Calls(nodes, self.count)]), **inputs)
        self.count.generating_s += time.perf_counter() - start
        padding = self.trainer.processing_class.pad_token_id
        self.count.transcripts += sum(
            int((row != padding).sum()) for row, seat in zip(found, seats, strict=True) if seat._done
        )
        return found


def rows_of(tasks: Sequence[Task]) -> Any:
    """A `datasets.Dataset` of games; their text comes from the environment."""
    from datasets import Dataset

    prompt = [{"role": "user", "content": ""}]
    return Dataset.from_list([{"prompt": prompt, "game_seed": task.seed, "fold": task.fold} for task in tasks])


def calling(config: Config, call: Call) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """(the model with the tokens of a call, its tokenizer with a chat template for calls)."""
    model, tokenizer = load_model(config.model)
    tokenizer.add_tokens([text for text in dict.fromkeys(call[0] + call[1]) if len(_ids(tokenizer, text)) > 1])
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = _response(str(tokenizer.eos_token))
    return model, tokenizer


def _response(end: str) -> dict[str, Any]:
    """How TRL parses a call from generated text: as in its template for Qwen3, with `end` closing a message."""
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": ">",
        "fields": {
            "tool_calls": {
                "open": "<tool_call>",
                "close_pattern": r"</tool_call>\s*",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": re.escape(end), "content": "text"},
        },
    }


@contextmanager
def trl_side(
    config: Config, folder: Path, first: Sequence[Task], plays: int, micro_batch: int, call: Call = JSON
) -> Iterator[TrlSide]:
    """A trainer for rounds like `first`: as many episodes of the same game, `plays` of each of its tasks.

    Accelerate has one mixed precision for a whole process, and our learner uses none: create the learner first. The
    setting is reset here and again on exit.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from accelerate.state import AcceleratorState
    from transformers.trainer_callback import PrinterCallback
    from trl.trainer.grpo_trainer import GRPOTrainer

    model, tokenizer = calling(config, call)
    opened, closed = ([i for text in part for i in _ids(tokenizer, text)] for part in call)
    end = tokenizer.eos_token_id

    def encode(action: str) -> tuple[int, ...]:
        return (*opened, *_ids(tokenizer, f" {action}"), *closed, end)

    game, seats = first[0], list[Seat]()

    def seat() -> Seat:
        seats.append(Seat(game.game, game.params, limit=game.limit))
        return seats[-1]

    AcceleratorState._reset_state()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=rows_of(first[::plays]),
        environment_factory=seat,
        args=_arguments(config, folder, len(first), plays, micro_batch),
    )
    trainer.remove_callback(PrinterCallback)  # it prints to stdout, where the benchmark's result goes
    side = TrlSide(trainer, TrieCache(encode), build_trie([""], lambda _: (end,)), seats)
    plain: Any = model.generate
    setattr(model, "generate", lambda **inputs: side.generate(plain, **inputs))  # noqa: B010  # mypy: a method
    try:
        yield side
    finally:
        AcceleratorState._reset_state()
        for one in seats:
            one._game.close()


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    found: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return found


def _arguments(config: Config, folder: Path, games: int, plays: int, micro_batch: int) -> Any:
    from trl.trainer.grpo_config import GRPOConfig

    cfg = config.ppo
    cpu = not torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=games // micro_batch,
        num_generations=plays,
        max_completion_length=config.model.context,
        max_tool_calling_iterations=config.game.limit + 1,
        temperature=cfg.temperature,
        beta=0.0,
        epsilon=cfg.clip,
        scale_rewards="batch",
        learning_rate=cfg.learning_rate,
        weight_decay=cfg.weight_decay,
        max_grad_norm=cfg.max_grad_norm,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        use_cpu=cpu,
        bf16=compute_dtype(config.model.dtype, "cpu" if cpu else "cuda") is torch.bfloat16,
        dataloader_pin_memory=not cpu,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        seed=config.seed,
    )
