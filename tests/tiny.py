"""Small real things for the tests of the learning core: a tokenizer, models of a few thousand weights, toy games.

Torch and transformers are imported inside the functions, so that tests which need neither do not wait for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grue import games
from grue.config import Config, dump_config, load_config, override, read_config
from grue.games.play import play
from grue.games.teachers import teacher
from grue.prompts.transcript import render_action, render_observation, render_task
from grue.types import Episode, Task

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from grue.models.policy_model import PolicyModel, Reading
    from grue.policy.choose import ChoosePolicy
    from grue.policy.policy import Policy
    from grue.prompts.tokens import Encoder
    from grue.rollout.pack import Batch

LIMIT = 12


def tasks(count: int, fold: str = "train", start: int = 0, limit: int = LIMIT) -> list[Task]:
    return games.tasks("toy", "", fold, limit, count=count, start=start)


@cache
def scripted(player: str, count: int = 20) -> tuple[Episode, ...]:
    """Games of the train fold played by a teacher."""
    game = games.make("toy")
    return tuple(play(game, task, teacher(player, game)) for task in tasks(count))


def _texts() -> Iterator[str]:
    for episode in (*scripted("gold"), *scripted("random")):
        yield render_task(episode.turns[0].observation.goal, episode.task.limit)
        for turn in episode.turns:
            yield render_observation(turn.observation.text)
            yield render_action(turn.action)


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with so few merges that most actions are several tokens long."""
    from grue.pretrain.tokenizer import train_tokenizer

    return train_tokenizer(_texts(), 320, ())


@cache
def encoder() -> Encoder:
    from grue.prompts.tokens import Encoder

    return Encoder(tokenizer())


# in the words of the tokenizer's own special tokens, so that the same model can read it
CHAT = (
    "{% for message in messages %}<bos>{{ message.role }}\n{{ message.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<bos>assistant\n{% endif %}"
)


@cache
def prompted(**prompt: Any) -> Encoder:
    """An encoder with the settings of `policy.*`; template="chat" comes with a template."""
    from copy import deepcopy

    from grue.config import PolicyConfig
    from grue.prompts.tokens import Encoder

    words = deepcopy(tokenizer())
    words.chat_template = CHAT
    return Encoder(words, PolicyConfig(**prompt))


def llama(seed: int = 0, *, hidden: int = 32, spread: float = 0.3, layers: int = 2) -> PreTrainedModel:
    """A few layers of random weights; `spread` is their deviation, large enough for policies far from uniform."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer()),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=spread,
        pad_token_id=tokenizer().pad_token_id,
        bos_token_id=tokenizer().bos_token_id,
        eos_token_id=tokenizer().eos_token_id,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).eval()


def policy_model(seed: int = 0, **options: Any) -> PolicyModel:
    """A PolicyModel whose value head says something: its last layer is random too."""
    import torch

    from grue.models.policy_model import PolicyModel

    model = PolicyModel(llama(seed, **options))
    torch.nn.init.normal_(model.value_head.outer.weight, std=0.1)
    return model.eval()


def policy(model: PolicyModel | None = None) -> ChoosePolicy:
    from grue.policy.choose import ChoosePolicy

    return ChoosePolicy(model or policy_model(), encoder())


def player(model: PolicyModel | None = None, **prompt: Any) -> Policy:
    """A policy of any kind."""
    from grue.policy.policy import make_policy

    return make_policy(model or policy_model(), prompted(**prompt))


def rollouts(
    model: PolicyModel, played: Sequence[Task], *, slots: int = 8, context: int = 512, seed: str = "0"
) -> list[Episode]:
    """Toy games played by `model`, sampled."""
    from grue.policy.decision import Decoding
    from grue.rollout.collect import collect

    seats = [games.make("toy") for _ in range(slots)]
    return collect(policy(model), seats, played, Decoding(), seed=seed, context=context)


def nll(reading: Reading, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """A loss that adds up over micro-batches: the negative log-likelihood of what was chosen."""
    import torch

    log_probs = torch.log_softmax(reading.logits_NC, -1).gather(1, batch.chosen_N[:, None])
    return -log_probs.sum() / 50, {}


def save(folder: Path, seed: int = 0, **options: Any) -> Path:
    """A folder that `model.name` can name."""
    model = llama(seed, **options)
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer().save_pretrained(folder)
    return folder


def config(model: Path, *settings: str, seed: int = 0) -> Config:
    """The toy preset, shrunk: seconds on one slow core."""
    small = [
        f"model.name={model}",
        "model.context=512",
        "model.dtype=float32",
        "threads=1",
        f"game.limit={LIMIT}",
        "demos.games=12",
        "sft.epochs=2",
        "sft.episodes_per_batch=4",
        "sft.warmup_steps=2",
        "ppo.iterations=4",
        "ppo.episodes_per_iteration=8",
        "ppo.slots=8",
        "ppo.minibatches=2",
        "ppo.dev_games=4",
        "eval.games=6",
        "eval.slots=6",
        "eval.side_games=0",
        "eval.bootstrap=100",
    ]
    return load_config("toy", [*small, *settings], None, seed)


def edit_config(run: Path, *settings: str) -> Config:
    """Change config.yaml as by hand; returns what a command without settings then asks for."""
    file = run / "config.yaml"
    file.write_text(dump_config(override(read_config(file), settings)), encoding="utf-8")
    return read_config(file)


def install(folder: Path, package: str, declarations: str) -> None:
    """What pip leaves of a package that declares games."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(f"[grue.games]\n{declarations}\n", encoding="utf-8")
