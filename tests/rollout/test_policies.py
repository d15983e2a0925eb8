"""Every policy plays, is stored, is learnt from: what it decided is what training finds again."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from grue import games
from grue.algos.losses import branch_log_probs, node_entropies
from grue.config import Config, ModelConfig, PPOConfig, SFTConfig
from grue.errors import ConfigError, GameError
from grue.evaluate.evaluate import evaluate
from grue.evaluate.summary import summarise
from grue.games.play import play as play_alone
from grue.games.teachers import teacher
from grue.games.toy import ToyGame
from grue.models.policy_model import PolicyModel
from grue.policy.decision import Decoding
from grue.rollout import pack
from grue.rollout.collect import collect
from grue.rollout.pack import Sample, collate, micro_batches, samples, tokenise
from grue.rollout.player import PolicyPlayer
from grue.stages.show import token_roles
from grue.storage.episodes import from_dict, to_dict
from grue.train.critic import Critic
from grue.train.learner import Learner
from grue.train.ppo_update import Updater, ppo_loss, with_reference
from grue.train.reference import Reference
from grue.train.sft import sft_loss
from grue.types import Candidate, Episode, Observation, Task, Turn

MODEL = tiny.policy_model(spread=0.1)  # far enough from certain that scores of whole actions still differ
COLUMNS = 640
Prompt = dict[str, Any]
PROMPTS: dict[str, Prompt] = {
    "choose": {},
    "choose, chat": {"template": "chat"},
    "choose, listed": {"list_actions": True},
    "choose, window": {"history": 2},
    "choose, window, listed, chat": {"history": 2, "list_actions": True, "template": "chat"},
    "aligned": {"kind": "aligned", "min_p": 1e-9},  # the tiny model is certain of most of its actions
    "aligned, all, chat": {"kind": "aligned", "min_p": 0.0, "template": "chat"},
    "score, sum": {"kind": "score", "normalise": "sum"},
    "score, token": {"kind": "score", "normalise": "token"},
    "score, word, chat": {"kind": "score", "normalise": "word", "template": "chat"},
    "write": {"kind": "write", "reply_tokens": 5},
    "write, chat": {"kind": "write", "reply_tokens": 5, "template": "chat"},
    "write, nucleus": {"kind": "write", "reply_tokens": 5, "top_p": 0.8},
    "think": {"kind": "think", "thought_tokens": 4},
    "think, nucleus, chat": {"kind": "think", "thought_tokens": 4, "top_p": 0.7, "template": "chat"},
}
each_prompt = pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())


def tempered(prompt: Prompt, temperature: float = 1.0) -> float:
    """Sums of log-probabilities favour the shortest action nearly to certainty: a high temperature leaves a choice."""
    sums = prompt.get("normalise") == "sum" or prompt.get("kind") == "aligned"
    return temperature * (20 if sums else 1)


def play(
    prompt: Prompt,
    tasks: Sequence[Task],
    slots: int = 6,
    *,
    temperature: float = 1.0,
    greedy: bool = False,
    model: PolicyModel = MODEL,
) -> list[Episode]:
    decoding = Decoding(greedy, temperature)
    seats = [games.make("toy") for _ in range(slots)]
    return collect(tiny.player(model, **prompt), seats, tasks, decoding, seed="0", context=COLUMNS)


@torch.no_grad()
def trained_view(model: PolicyModel, items: Sequence[Sample], temperature: float) -> list[tuple[float, float, float]]:
    """(log_prob, entropy, value) of every turn as training computes them."""
    found: list[tuple[float, float, float]] = []
    for item in items:
        batch = collate([item])
        reading = model(*batch.inputs)
        log_probs_NC = branch_log_probs(reading.logits_NC, temperature)
        chosen_N = log_probs_NC.gather(1, batch.chosen_N[:, None]).squeeze(1)
        turns = torch.zeros(len(batch.turn_row_T), 2)
        turns.index_add_(0, batch.node_turn_N, torch.stack([chosen_N, node_entropies(log_probs_NC)], 1))
        found += [(*pair, value) for pair, value in zip(turns.tolist(), reading.values_T.tolist(), strict=True)]
    return found


@each_prompt
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_training_computes_what_the_engine_computed(prompt: Prompt, temperature: float) -> None:
    temperature = tempered(prompt, temperature)
    episodes = play(prompt, tiny.tasks(4), temperature=temperature)
    played = [turn for episode in episodes for turn in episode.turns]
    found = trained_view(MODEL, samples(episodes), temperature)
    assert len(found) == len(played) > 20
    for turn, (log_prob, entropy, value) in zip(played, found, strict=True):
        assert turn.log_prob == pytest.approx(log_prob, abs=1e-4)
        assert turn.entropy == pytest.approx(entropy, abs=1e-4)
        assert turn.value == pytest.approx(value, abs=1e-4)
    assert min(turn.log_prob for turn in played) < -1  # there was something to decide


@each_prompt
def test_a_batch_of_1_plays_like_a_batch_of_6(prompt: Prompt) -> None:
    for a, b in zip(play(prompt, tiny.tasks(4), 1), play(prompt, tiny.tasks(4), 6), strict=True):
        assert (a.outcome, a.segments, a.final) == (b.outcome, b.segments, b.final)
        for x, y in zip(a.turns, b.turns, strict=True):
            assert (x.action, x.valid, x.thought, x.candidates) == (y.action, y.valid, y.thought, y.candidates)
            assert x.log_prob == pytest.approx(y.log_prob, abs=1e-4)


@each_prompt
def test_greedy_play_is_one_play_and_its_actions_are_the_likeliest(prompt: Prompt) -> None:
    first, second = (play(prompt, tiny.tasks(2), slots, greedy=True) for slots in (1, 2))
    assert [e.segments for e in first] == [e.segments for e in second]
    if prompt.get("kind", "choose") != "score":
        return
    player = tiny.player(MODEL, **prompt)
    for episode in first:
        for turn in episode.turns:
            weighed = player.weigh(turn, episode.segments[turn.segment].ids, 1.0)
            assert dict(weighed)[turn.action] >= weighed[0][1] - 1e-5


def settings(prompt: Prompt, *changes: str) -> Config:
    chosen = [f"policy.{key}={str(value).lower()}" for key, value in prompt.items()]
    ppo = ("ppo.warmup_iterations=0", "ppo.minibatches=1", "ppo.epochs=1", "ppo.kl_coef=0.1")
    return tiny.config(Path("none"), *chosen, *ppo, f"ppo.temperature={tempered(prompt)}", *changes)


@each_prompt
def test_ppo_begins_on_policy_and_then_moves(prompt: Prompt) -> None:
    model, cfg = tiny.policy_model(spread=0.1), settings(prompt)
    episodes = play(prompt, tiny.tasks(6), model=model, temperature=cfg.ppo.temperature)
    learner = Learner(
        model, learning_rate=1e-3, weight_decay=0.0, max_grad_norm=1.0, micro_tokens=1024, dtype="float32"
    )
    updater = Updater(cfg, learner, 0.01, Critic(model.value_head, 1e-3, 1, 1, "0"))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    reference = Reference(model)
    metrics = updater.update(episodes, 0, 1.0, reference).metrics
    assert metrics["engine_gap"] < 1e-4
    assert metrics["kl_old"] == pytest.approx(0, abs=1e-6)
    assert metrics["kl_ref"] == pytest.approx(0, abs=1e-5)
    assert metrics["clip_fraction"] == 0
    assert any(not torch.equal(before[name], p) for name, p in model.named_parameters() if name.startswith("lm."))
    moved = updater.update(episodes, 1, 1.0, reference).metrics
    assert moved["engine_gap"] > metrics["engine_gap"]
    assert moved["kl_ref"] > metrics["kl_ref"]


@each_prompt
def test_fine_tuning_raises_the_probability_of_what_the_teacher_did(prompt: Prompt) -> None:
    model = tiny.policy_model(spread=0.1)
    items = samples([tokenise(episode, tiny.player(model, **prompt)) for episode in tiny.scripted("gold")[:6]])
    nodes = sum(len(turn.branches) for item in items for turn in item.turns)
    assert nodes > 6
    learner = Learner(
        model, learning_rate=3e-3, weight_decay=0.0, max_grad_norm=1.0, micro_tokens=2048, dtype="float32"
    )
    cfg = SFTConfig(smoothing=0.02)
    losses = [learner.step(items, lambda r, b: sft_loss(r, b, cfg, nodes=nodes), 1.0)["nll"] for _ in range(4)]
    assert losses[-1] < losses[0]


@each_prompt
def test_a_teachers_turn_is_one_that_the_policy_could_have_played(prompt: Prompt) -> None:
    """The same segments as play gives, had the policy done what the teacher did."""
    player = tiny.player(MODEL, **prompt)
    original = tiny.scripted("gold")[0]
    found = tokenise(original, player, COLUMNS)
    assert [turn.action for turn in found.turns] == [turn.action for turn in original.turns]
    for turn in found.turns:
        ids = found.segments[turn.segment].ids
        start = turn.state_position + 1 + turn.thought_ids
        action = player.encoder.action(turn.action)
        assert ids[start : start + len(action)] == action
        for branch in turn.branches:
            chosen = branch.children[branch.chosen]
            if turn.candidates:
                assert turn.candidates[chosen].ids == action
            else:
                assert chosen == ids[branch.position + 1]
        if prompt.get("history"):  # each segment begins with the task and ends with the step
            goal = player.encoder.task(turn.observation.goal, original.task.limit)
            assert ids[: len(goal)] == goal


@each_prompt
def test_episodes_survive_json(prompt: Prompt) -> None:
    for episode in play(prompt, tiny.tasks(2)):
        again = from_dict(json.loads(json.dumps(to_dict(episode))))
        assert to_dict(again) == to_dict(episode)
        assert [t.candidates for t in again.turns] == [t.candidates for t in episode.turns]
        mine, theirs = collate(samples([again])), collate(samples([episode]))
        assert torch.equal(mine.children_NC, theirs.children_NC)
        assert torch.equal(mine.ids_BL, theirs.ids_BL)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
@each_prompt
def test_what_is_shown_of_a_turn_is_what_it_was_drawn_from(prompt: Prompt, temperature: float) -> None:
    """Of policies that choose an action, the probability of the one that was taken; of writers, see test_write."""
    if prompt.get("kind") == "write":
        return
    player = tiny.player(MODEL, **prompt)
    (episode,) = play(prompt, tiny.tasks(1), temperature=temperature)
    for turn in episode.turns:
        shown = player.weigh(turn, episode.segments[turn.segment].ids, temperature)
        assert sum(probability for _, probability in shown) == pytest.approx(1, abs=1e-5)
        assert {action for action, _ in shown} == set(turn.observation.actions or ())
        if not turn.thought_ids:
            assert dict(shown)[turn.action] == pytest.approx(float(torch.tensor(turn.log_prob).exp()), abs=1e-4)


def test_micro_batches_count_the_trees_of_scored_actions() -> None:
    items = samples(play(PROMPTS["score, sum"], tiny.tasks(4)))
    for group in micro_batches(items, 700):
        assert len(group) == 1 or collate(group).ids_BL.numel() <= 700
    assert all(item.size == collate([item]).ids_BL.shape[1] for item in items)


def long_lists(count: int) -> list[Episode]:
    """Played games, in which many more actions were listed than could be."""
    more = tuple(Candidate((7, number, 9), 1.0) for number in range(20, 120))

    def longer(turn: Turn) -> Turn:
        (branch,) = turn.branches
        candidates = (*turn.candidates, *more[: 60 + turn.state_position % 40])
        children = range(len(candidates))
        return replace(turn, candidates=candidates, branches=(replace(branch, children=tuple(children)),))

    played = play(PROMPTS["score, token"], tiny.tasks(count))
    return [replace(episode, turns=tuple(map(longer, episode.turns))) for episode in played]


def test_a_sample_with_many_tokens_of_trees_is_read_in_parts() -> None:
    for item in samples(long_lists(6)):
        marked = replace(item, advantages=tuple(float(place) for place in range(len(item.turns))))
        parts = marked.parts(64, 32)
        assert len(parts) > 1 and all(part.ids == item.ids[: len(part.ids)] and part.turns for part in parts)
        assert tuple(turn for part in parts for turn in part.turns) == item.turns
        assert tuple(advantage for part in parts for advantage in part.advantages) == marked.advantages
        assert all(part.size <= 2 * len(item.ids) or len(part.turns) == 1 for part in parts)
        assert parts[-1].ids == item.ids and item.parts(item.size, 10**9) == [item]
        assert len(item.parts(item.size, 1)) > 1  # in a narrow model attention is most of the work
    (item, *_) = samples(play(PROMPTS["choose"], tiny.tasks(1)))
    assert item.parts(1, 32) == [item]  # without trees there is nothing to cut off


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_reading_in_parts_changes_nothing(kl_coef: float) -> None:
    """What is read, the loss and the step are the same, however few tokens are read at once."""
    episodes = long_lists(6)
    advantages = [np.linspace(-1, 1, episode.steps, dtype=np.float32) for episode in episodes]
    turns = sum(episode.steps for episode in episodes)
    found = []
    for tokens in (64, 100_000):
        cfg = PPOConfig(kl_coef=kl_coef, micro_tokens=tokens)
        model = tiny.policy_model(spread=0.1)
        learner = Learner.of(model, ModelConfig(dtype="float32"), cfg, value_learning_rate=1e-3)
        items = samples(episodes, advantages, advantages)
        if kl_coef:
            items = with_reference(items, learner.read(items, 1.0, model=tiny.policy_model(spread=0.11)))
        read, at_turns = learner.read(items, 1.0), learner.read_turns(items, 1.0)
        row = learner.step(items, partial(ppo_loss, cfg=cfg, turns=turns, entropy_coef=0.01, policy=True), 1.0)
        found.append((read, at_turns, row, torch.cat([p.detach().flatten() for p in model.parameters()])))
    (read, at_turns, row, weights), (read_whole, at_turns_whole, row_whole, weights_whole) = found
    for part, whole in zip(read, read_whole, strict=True):
        width = min(part.shape[1], whole.shape[1])
        torch.testing.assert_close(part[:, :width], whole[:, :width], atol=1e-4, rtol=1e-4)
    for part, whole in zip(at_turns, at_turns_whole, strict=True):
        torch.testing.assert_close(part, whole, atol=1e-4, rtol=1e-4)
    assert row == pytest.approx(row_whole, rel=1e-3, abs=1e-5)
    assert (weights - weights_whole).abs().max() < 1e-4


def test_lists_that_do_not_fit_into_the_machine_are_an_error_before_it_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    (item, *_) = samples(play(PROMPTS["score, sum"], tiny.tasks(1)))
    many = tuple(Candidate((7, number, 9), 1.0) for number in range(6000))
    large = replace(item, turns=tuple(replace(turn, candidates=many) for turn in item.turns))
    monkeypatch.setattr(pack, "free_bytes", lambda: 10**9)
    with pytest.raises(MemoryError, match=r"[\d,]{6,} tokens of a segment .* mask takes [\d.]+ GiB; 0.9 are free"):
        collate([large])
    assert collate([item]).trees is not None


@torch.no_grad()
def test_rows_with_trees_of_different_sizes_do_not_disturb_each_other() -> None:
    items = samples(play(PROMPTS["score, token"], tiny.tasks(5)))
    together = MODEL(*collate(items).inputs).logits_NC
    first = 0
    for item in items:
        alone = MODEL(*collate([item]).inputs).logits_NC
        part = together[first : first + len(alone)]
        assert torch.allclose(alone, part[:, : alone.shape[1]], atol=1e-5)
        assert torch.isinf(part[:, alone.shape[1] :]).all()
        first += len(alone)


class Mute(ToyGame):
    """A game that cannot list its valid actions."""

    def _actions(self) -> tuple[str, ...]:
        return super()._actions()

    def reset(self, task: Task) -> Any:
        from dataclasses import replace

        return replace(super().reset(task), actions=None)

    def step(self, action: str) -> Any:
        from dataclasses import replace

        observation, reward, outcome = super().step(action)
        return replace(observation, actions=None), reward, outcome


def test_a_writer_plays_games_that_list_no_actions() -> None:
    prompt = PROMPTS["write"]
    episodes = collect(tiny.player(MODEL, **prompt), [Mute()], tiny.tasks(2), Decoding(), seed="0", context=COLUMNS)
    assert all(not episode.failed and episode.steps for episode in episodes)
    assert all(turn.valid == bool(turn.action) for episode in episodes for turn in episode.turns)


def test_invalid_replies_are_turns_that_are_counted() -> None:
    episodes = play(PROMPTS["write"], tiny.tasks(6))
    turns = [turn for episode in episodes for turn in episode.turns]
    invalid = [turn for turn in turns if not turn.valid]
    assert invalid  # random weights write no valid actions, or hardly any
    assert all((turn.action in (turn.observation.actions or ())) == turn.valid for turn in turns)
    assert all("\n" not in turn.action for turn in turns)
    found = summarise(episodes, fold="train")
    assert found["invalid"] == pytest.approx(len(invalid) / len(turns))
    assert all(episode.steps == tiny.LIMIT for episode in episodes if not any(turn.valid for turn in episode.turns))


def test_draws_are_fixed_by_the_place_in_the_list() -> None:
    for prompt in (PROMPTS["write, nucleus"], PROMPTS["score, token"], PROMPTS["think"]):
        tasks = tiny.tasks(3)
        random.Random(0).shuffle(tasks)
        assert [e.segments for e in play(prompt, tasks)] == [e.segments for e in play(prompt, tasks)]


def test_an_action_that_the_policy_may_not_write_does_not_grow_out_of_the_context() -> None:
    """A teacher's action can be longer than `policy.reply_tokens`."""
    player = tiny.player(MODEL, kind="write", reply_tokens=1)
    for context in range(100, 160, 3):
        for original in tiny.scripted("gold")[:3]:
            found = tokenise(original, player, context)
            assert max(len(segment.ids) for segment in found.segments) <= context


def test_evaluate_takes_a_loaded_policy_and_says_how_other_players_are_evaluated() -> None:
    inner, decoding = tiny.policy(), Decoding(greedy=True)
    seats, tasks = [games.make("toy") for _ in range(2)], tiny.tasks(3, "dev")
    loaded = PolicyPlayer(inner, name="ppo", context=512, limit=tiny.LIMIT, decoding=decoding)
    assert evaluate(loaded, seats, tasks, decoding, context=512) == evaluate(inner, seats, tasks, decoding, context=512)
    with pytest.raises(ConfigError, match=r"a policy is what load_policy and make_policy give, not Gold") as caught:
        evaluate(teacher("gold", seats[0]), seats, tasks, decoding, context=512)  # type: ignore[arg-type]
    assert "[play(game, task, player) for task in tasks]" in caught.value.hint


@each_prompt
def test_a_game_that_a_policy_plays_alone_is_recorded_as_by_collect(prompt: Prompt) -> None:
    game, decoding, inner = games.make("toy"), Decoding(greedy=True), tiny.player(MODEL, **prompt)
    player = PolicyPlayer(inner, name="ppo", context=COLUMNS, limit=tiny.LIMIT, decoding=decoding)
    for task in tiny.tasks(2):
        (together,) = collect(inner, [game], [task], decoding, seed="0", player="ppo", context=COLUMNS)
        assert (play_alone(game, task, player) == together) is True  # pytest would take minutes to say how they differ


class Meddling(PolicyPlayer):
    """Plays every second action itself."""

    own = False

    def act(self, observation: Observation) -> str:
        self.own = not self.own
        return (observation.actions or ("",))[0] if self.own else super().act(observation)


def test_what_a_policy_did_not_decide_is_not_recorded_as_if_it_had() -> None:
    player = Meddling(tiny.policy(), name="mine", context=512, limit=tiny.LIMIT, decoding=Decoding())
    episode = play_alone(games.make("toy"), tiny.tasks(1)[0], player)
    assert episode.segments == ()
    assert {turn.log_prob for turn in episode.turns} == {0.0}


def test_a_game_that_fails_to_begin_has_nothing_of_the_one_before() -> None:
    game = games.make("toy")
    player = PolicyPlayer(tiny.policy(), name="ppo", context=512, limit=tiny.LIMIT, decoding=Decoding())
    task = tiny.tasks(1)[0]
    assert play_alone(game, task, player).segments

    class Stuck(ToyGame):
        def reset(self, task: Task) -> Observation:
            raise GameError("no door")

    assert play_alone(Stuck(), task, player).segments == ()


@pytest.mark.parametrize("kind", ["choose", "aligned", "score", "write"])
def test_the_report_marks_the_tokens_that_were_decided(kind: str) -> None:
    """Where whole actions are weighed, all tokens of the chosen one."""
    player = tiny.player(kind=kind, min_p=0.0)
    (episode,) = collect(player, [games.make("toy")], tiny.tasks(1), Decoding(), seed="0", player=kind)
    roles = [role for _, role in token_roles(episode, player)]
    decided: set[int] = set()
    for turn in episode.turns:
        for branch in turn.branches:
            length = len(turn.candidates[branch.chosen].ids) if turn.candidates else 1
            decided |= {*range(branch.position + 1, branch.position + 1 + length)}
    assert {place for place, role in enumerate(roles) if role == "branch"} == decided
    assert len(decided) >= episode.steps
    assert all(roles[turn.state_position] == "read" for turn in episode.turns)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"greedy": "sampled"}, "greedy='sampled' is no bool"),
        ({"greedy": 1}, "greedy=1 is no bool"),
        ({"temperature": "1"}, "temperature='1' is not a number"),
        ({"temperature": True}, "temperature=True is not a number"),
    ],
)
def test_a_decoding_takes_a_truth_value_and_numbers(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Decoding(**settings)


def test_arguments_that_are_easily_confused_are_named() -> None:
    policy, game, every = tiny.policy(), games.make("toy"), tiny.tasks(1)
    for given, said in (
        ((game, every, Decoding(), 512), r"is not a list of games\nhint: \[game\] plays one"),
        (("toy", every, Decoding(), 512), "games='toy' is not a list of games"),
        (([1], every, Decoding(), 512), "is not a list of games"),
        (([game], every[0], Decoding(), 512), "tasks is not a list of tasks"),
        (([game], every, "greedy", 512), "'greedy' is no Decoding"),
        (([game], every, Decoding(), "512"), "context='512'"),
    ):
        seats, tasks, decoding, context = given
        with pytest.raises(ConfigError, match=said):
            evaluate(policy, seats, tasks, decoding, context=context)  # type: ignore[arg-type]
