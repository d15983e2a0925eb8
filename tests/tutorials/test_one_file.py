"""The one-file tutorial computes what the library computes: advantages, losses and gradients of the same batch."""

from __future__ import annotations

import ast
import importlib.util
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import tiny
from grue.algos.advantages import turn_gae
from grue.algos.losses import branch_log_probs
from grue.config import PPOConfig, SFTConfig
from grue.evaluate.stats import wilson
from grue.models.policy_model import PolicyModel
from grue.policy.trie import build_trie, path_branches
from grue.rollout.pack import collate, samples, tokenise
from grue.train.credit import credit
from grue.train.ppo_update import ppo_loss, with_reference
from grue.train.sft import sft_loss
from grue.types import Episode

FILE = Path(__file__).parents[2] / "tutorials" / "one_file_ppo.py"
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def one() -> ModuleType:
    spec = importlib.util.spec_from_file_location("one_file_ppo", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["one_file_ppo"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def played() -> list[Episode]:
    return tiny.rollouts(tiny.policy_model(1), tiny.tasks(10))


def _twin(one: ModuleType, model: PolicyModel) -> torch.nn.Module:
    """The file's actor-critic with the weights of the library's model."""
    twin = one.ActorCritic(model.lm)
    for mine, theirs in zip(twin.critic.parameters(), model.value_head.parameters(), strict=True):
        mine.data = theirs.detach().clone()
    return twin


def _as_read(one: ModuleType, episodes: Sequence[Episode]) -> list[object]:
    """The library's episodes in the file's own types."""
    return [
        one.Episode(
            list(episode.segments[0].ids),
            [
                one.Turn(
                    turn.state_position,
                    [(branch.position, branch.children, branch.chosen) for branch in turn.branches],
                    turn.log_prob,
                    turn.value,
                    turn.reward,
                )
                for turn in episode.turns
                if turn.valid
            ],
            str(episode.outcome),
        )
        for episode in episodes
    ]


def _assert_same_gradients(twin: torch.nn.Module, model: PolicyModel, *, critic: bool) -> None:
    ours = {name: p.grad.clone() for name, p in model.lm.named_parameters() if p.grad is not None}
    assert ours and all(gradient.abs().sum() > 0 for gradient in ours.values())
    for name, parameter in twin.lm.named_parameters():  # type: ignore[union-attr]
        torch.testing.assert_close(parameter.grad, ours[name], msg=name, **CLOSE)
    if critic:
        pairs = zip(twin.critic.parameters(), model.value_head.parameters(), strict=True)  # type: ignore[union-attr]
        for mine, theirs in pairs:
            torch.testing.assert_close(mine.grad, theirs.grad, **CLOSE)


def _separate(model: PolicyModel) -> PolicyModel:
    """A copy of `model`, so that the two sides do not add up their gradients."""
    import copy

    return copy.deepcopy(model)


def test_it_is_one_file_of_at_most_400_lines_that_does_not_import_grue() -> None:
    source = FILE.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 400
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not any(name.split(".")[0] == "grue" for name in names)


def test_advantages_are_those_of_the_library(one: ModuleType, played: list[Episode]) -> None:
    mine = _as_read(one, played)
    one.credit(mine, 0.93, 0.9)
    cfg = PPOConfig(gamma=0.93, lam=0.9)
    advantages, returns = credit(played, cfg)
    found = np.array([turn.advantage for episode in mine for turn in episode.turns])  # type: ignore[attr-defined]
    np.testing.assert_allclose(found, np.concatenate(advantages), **CLOSE)
    targets = np.array([turn.target for episode in mine for turn in episode.turns])  # type: ignore[attr-defined]
    np.testing.assert_allclose(targets, np.concatenate(returns), **CLOSE)
    rewards, values = np.array([0.0, 0.5, -0.25]), np.array([0.3, -0.1, 0.7])
    expected = turn_gae(rewards, values, 0.0, 0.9, 0.8)[0]
    np.testing.assert_allclose(one.gae(list(rewards), list(values), 0.9, 0.8), expected, **CLOSE)


def test_ppo_loss_and_gradients_are_those_of_the_library(one: ModuleType, played: list[Episode]) -> None:
    model = tiny.policy_model(2)  # not the one that played: ratios differ from 1, and some are clipped
    twin = _twin(one, _separate(model))
    reference, twin_reference = tiny.policy_model(3), _twin(one, tiny.policy_model(3))
    settings = one.PPO(kl_coef=0.1)
    mine = _as_read(one, played)
    one.credit(mine, settings.gamma, settings.lam)
    loss = one.ppo_loss(twin, twin_reference, mine, settings, policy=True)
    loss.backward()

    cfg = PPOConfig(
        gamma=settings.gamma,
        lam=settings.lam,
        clip=settings.clip,
        value_clip=0.0,
        value_passes=0,
        value_coef=settings.value_coef,
        kl_coef=settings.kl_coef,
    )
    advantages, returns = credit(played, cfg)
    items = samples(played, advantages, returns)
    with torch.no_grad():
        log_probs = [branch_log_probs(reference(*collate([item]).inputs).logits_NC, 1.0) for item in items]
    batch = collate(with_reference(items, log_probs))
    expected, metrics = ppo_loss(
        model(*batch.inputs), batch, cfg, len(batch.turn_row_T), settings.entropy_coef, policy=True
    )
    expected.backward()

    assert metrics["clip_fraction"] > 0.05
    torch.testing.assert_close(loss, expected, **CLOSE)
    _assert_same_gradients(twin, model, critic=True)
    critic_alone = one.ppo_loss(twin, twin_reference, mine, settings, policy=False)
    theirs, _ = ppo_loss(model(*batch.inputs), batch, cfg, len(batch.turn_row_T), settings.entropy_coef, policy=False)
    torch.testing.assert_close(critic_alone, theirs, **CLOSE)


def test_sft_loss_and_gradients_are_those_of_the_library(one: ModuleType) -> None:
    model = tiny.policy_model(4)
    twin = _twin(one, _separate(model))
    demonstrations = [tokenise(episode, tiny.policy(model)) for episode in tiny.scripted("gold")[:6]]
    loss = one.sft_loss(twin, _as_read(one, demonstrations), 0.05)
    loss.backward()
    batch = collate(samples(demonstrations))
    expected, _ = sft_loss(model(*batch.inputs), batch, SFTConfig(smoothing=0.05), nodes=len(batch.chosen_N))
    expected.backward()
    torch.testing.assert_close(loss, expected, **CLOSE)
    _assert_same_gradients(twin, model, critic=False)


def test_the_trie_branches_where_the_library_branches(one: ModuleType) -> None:
    actions = one.Kitchen(3).actions()

    def encode(text: str) -> list[int]:
        return list(tiny.encoder()._text.opening(text))

    root = build_trie(actions, lambda action: encode(f" {action}\n"))
    for action in actions:
        node, branches = one.build_trie(actions, encode), []
        for offset, token in enumerate(encode(f" {action}\n")):
            if len(node) > 1:
                branches.append((offset, tuple(node), tuple(node).index(token)))
            node = node[token]
        assert node == action
        assert branches == path_branches(root, encode(f" {action}\n"))


def test_what_was_played_is_what_is_trained(one: ModuleType) -> None:
    """Before the first step the ratio is 1 at every turn."""
    model, encode = one.ActorCritic(tiny.llama(5)), lambda text: list(tiny.encoder()._text.opening(text))
    torch.nn.init.normal_(model.critic[-1].weight, std=0.1)
    episodes = one.Play(model, encode, range(5), random.Random(0), greedy=False).run()
    now = one.read(model, episodes)
    turns = [turn for episode in episodes for turn in episode.turns]
    torch.testing.assert_close(now.per_turn(now.chosen_N), torch.tensor([turn.log_prob for turn in turns]), **CLOSE)
    torch.testing.assert_close(now.values_T, torch.tensor([turn.value for turn in turns]), **CLOSE)
    assert all(episode.outcome in ("won", "lost", "limit") for episode in episodes)


def test_the_teacher_always_knows_the_way_and_often_comes_late(one: ModuleType) -> None:
    outcomes = []
    for seed in range(60):
        game = one.Kitchen(seed, limit=50)
        for action in game.teacher():
            assert action in game.actions()
            game.step(action)
        assert game.outcome == "won" and len(game.points) == 7
        outcomes.append(game.steps <= one.LIMIT)
    assert 0.1 < np.mean(outcomes) < 0.6


def test_train_and_test_recipes_share_no_preparation(one: ModuleType) -> None:
    train, test = (
        {(food, *ways) for seed in seeds for food, ways in one.Kitchen(seed).recipe.items()}
        for seeds in (range(300), range(10_000, 10_300))
    )
    assert len(train) == len(test) == 18  # 6 foods, half of 6 ways each
    assert not train & test


def test_intervals_are_those_of_the_library(one: ModuleType) -> None:
    for wins, games in ((0, 20), (7, 20), (333, 1000)):
        low, high = one.wilson(wins, games)
        assert (low, high) == pytest.approx(tuple(wilson(wins, games)), abs=1e-4)


def test_it_runs_from_end_to_end(one: ModuleType, tiny_folder: Path) -> None:
    """With fewer games than minibatches, too."""
    sizes = ["--demonstrations", "16", "--iterations", "3", "--games", "3", "--test-games", "6"]
    found = one.main(["--model", str(tiny_folder), *sizes])
    assert set(found) == {"teacher", "base", "sft", "ppo", "ppo_sampled"}


@pytest.mark.slow
@pytest.mark.learning
def test_ppo_beats_its_teacher_with_the_embedded_base(one: ModuleType) -> None:
    found = one.main([])
    assert found["ppo"] > found["teacher"] + 0.1
