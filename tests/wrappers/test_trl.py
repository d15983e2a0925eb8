"""The environment for TRL by itself, and a step of its GRPOTrainer on a tiny random model, where TRL is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grue.errors import ConfigError, GameError
from grue.games import make, tasks
from grue.games.toy import ToyGame
from grue.models.load import embedded_folder
from grue.types import Observation, Outcome
from grue.wrappers import trl as adapter

CALL = '<tool_call>\n{"name": "act", "arguments": {"action": "look"}}\n</tool_call>'


def test_gold_earns_the_reward() -> None:
    env = adapter.environment("toy", limit=20)()
    task = tasks("toy", "", "dev", 20, count=1)[0]
    game = make("toy")
    first = game.reset(task)
    shown = env.reset(game_seed=task.seed, fold="dev", prompt="not read")
    assert first.goal in shown
    assert "You have 20 steps." in shown
    assert shown.endswith(f"Valid actions: {', '.join(first.actions or ())}")
    path = game.gold()  # type: ignore[attr-defined]
    answers = [env.act(action) for action in path]
    assert answers[-1].endswith("The game is over: won.")
    assert env.get_reward() == 1.0
    assert env.act("look") == "The game is over."


def test_the_reward_is_the_score_reached_when_the_limit_comes() -> None:
    env = adapter.environment("toy", limit=1, list_actions=False)()
    assert "Valid actions" not in env.reset(game_seed=3)
    assert env.act("dance").endswith("The game is over: limit.")
    assert env.get_reward() == 0.0


def test_a_crashed_game_has_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: ToyGame, action: str) -> tuple[Observation, float, Outcome | None]:
        raise GameError("the engine is gone")

    env = adapter.environment("toy")()
    env.reset(game_seed=0)
    monkeypatch.setattr(ToyGame, "step", crash)
    with pytest.raises(GameError):
        env.act("look")
    assert env.get_reward() is None


def test_act_is_the_only_tool() -> None:
    env = adapter.environment("toy")()
    assert [name for name in dir(env) if not name.startswith("_")] == ["act", "get_reward", "reset"]


def test_rows_name_their_game() -> None:
    pytest.importorskip("datasets")
    rows = adapter.dataset("toy", limit=9, fold="dev", count=3)
    assert rows["game_seed"] == [10_000, 10_001, 10_002]
    assert set(rows["fold"]) == {"dev"}


def tool_user() -> tuple[Any, Any]:
    """(a tiny Llama of random weights that calls the tool whenever it is its turn, its tokenizer).

    Two rows are set by hand: after a line's end comes the call, which is a token of its own, and after that the end.
    """
    import trl
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder())
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})
    tokenizer.add_tokens(["<|im_start|>", "<think>", "</think>"], special_tokens=True)
    tokenizer.add_tokens([CALL])
    templates = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (templates / "qwen3.jinja").read_text(encoding="utf-8")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    newline = tokenizer.encode("assistant\n", add_special_tokens=False)[-1]
    (call,) = tokenizer.encode(CALL, add_special_tokens=False)
    with torch.no_grad():
        for axis, (now, then) in enumerate([(newline, call), (call, tokenizer.eos_token_id)]):
            model.model.embed_tokens.weight[now] = 20 * torch.eye(32)[axis]
            model.lm_head.weight[then] = 3 * torch.eye(32)[axis]
    return model.eval(), tokenizer


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of TRL and what it imports; grue's own warnings fail the tests above
def test_grpo_trainer_plays_games_to_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    from trl import GRPOConfig, GRPOTrainer

    game: dict[str, Any] = {"game": "toy", "limit": 3}
    made: list[adapter.GameEnvironment] = []

    def factory() -> adapter.GameEnvironment:
        made.append(adapter.environment(**game)())
        return made[-1]

    model, tokenizer = tool_user()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=adapter.dataset(**game, count=4),
        environment_factory=factory,
        reward_funcs=lambda environments, **_: [float(len(made) - made.index(env)) for env in environments],
        args=GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=2,
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=700,
            max_tool_calling_iterations=5,
            temperature=0.5,
            learning_rate=1e-3,
            use_cpu=True,
            bf16=False,
            report_to="none",
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
        ),
    )
    trainer.train()
    assert len(made) >= 4
    assert [env._outcome for env in made] == [Outcome.LIMIT] * len(made)  # "look", three times
    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert len(logged) == 2
    assert "rewards/GameEnvironment/mean" in logged[0]
    assert any(not torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_a_call_with_something_else_than_text_costs_a_step_and_ends_nothing() -> None:
    env = adapter.environment("toy", limit=3)()
    env.reset(game_seed=0)
    assert "over" not in env.act(5)  # type: ignore[arg-type]
    assert env.get_reward() == 0.0
    env.act(None)  # type: ignore[arg-type]
    assert env.act("look").endswith("The game is over: limit.")


def test_the_game_gets_the_action_as_every_player_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    got, step = [], ToyGame.step

    def noted(self: ToyGame, action: str) -> tuple[Observation, float, Outcome | None]:
        got.append(action)
        return step(self, action)

    monkeypatch.setattr(ToyGame, "step", noted)
    env = adapter.environment("toy")()
    env.reset(game_seed=0)
    env.act("  look\n\taround ")
    assert got == ["look around"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("toi", "", 16), "toi"),
        (("toy", {"rooms": 99}, 16), "out of range"),
        (("toy", "", 0), "limit=0 is not"),
        (("toy", "", True), "limit=True"),
    ],
)
def test_what_does_not_exist_is_refused_before_a_trainer_asks_for_it(given: tuple[Any, ...], said: str) -> None:
    game, params, limit = given
    with pytest.raises(ConfigError, match=said):
        adapter.environment(game, params, limit=limit)
