"""Many games at once: each is played as if it were alone, and what is stored is what training finds."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import tiny
from grue import games
from grue.algos.losses import branch_log_probs, node_entropies
from grue.engine import engine as engine_module
from grue.engine.engine import Engine
from grue.engine.passes import ON_GPU, Pass, plan_pass
from grue.errors import ConfigError, DataError, GameError, ModelError
from grue.games.toy import ToyGame
from grue.models.policy_model import PolicyModel
from grue.policy import trie as trie_module
from grue.policy.decision import Decoding, Query
from grue.rollout.collect import collect
from grue.rollout.pack import collate, samples
from grue.types import Episode, Observation, Outcome, Task

MODEL = tiny.policy_model()
SAMPLED, GREEDY = Decoding(), Decoding(greedy=True)


def play(
    tasks: Sequence[Task],
    slots: int,
    decoding: Decoding = SAMPLED,
    *,
    context: int = 640,
    seed: str = "0",
    model: PolicyModel = MODEL,
    values_limit: bool = False,
) -> list[Episode]:
    seats = [games.make("toy") for _ in range(slots)]
    return collect(tiny.policy(model), seats, tasks, decoding, seed=seed, context=context, values_limit=values_limit)


def actions(episodes: Sequence[Episode]) -> list[list[str]]:
    return [[turn.action for turn in episode.turns] for episode in episodes]


def close(one: Sequence[Episode], other: Sequence[Episode]) -> None:
    """The same games, and numbers equal but for rounding."""
    for a, b in zip(one, other, strict=True):
        # bare truth values: pytest would take minutes to say how whole episodes differ
        same = (a.task, a.outcome, a.segments, a.final) == (b.task, b.outcome, b.segments, b.final)
        assert same, a.task
        for x, y in zip(a.turns, b.turns, strict=True):
            assert (x.action, x.observation, x.reward, x.branches) == (y.action, y.observation, y.reward, y.branches)
            assert (x.segment, x.state_position) == (y.segment, y.state_position)
            assert x.log_prob == pytest.approx(y.log_prob, abs=1e-5)
            assert x.entropy == pytest.approx(y.entropy, abs=1e-5)
            assert x.value == pytest.approx(y.value, abs=1e-5)


@pytest.mark.parametrize(("kind", "look"), [("choose", 32), ("choose", 1), ("choose", 0), ("think", 32), ("think", 1)])
def test_a_look_ahead_saves_passes_and_changes_nothing(kind: str, look: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU every choice of a turn is read along with the observation, but for what lies further than `look`."""
    player, tasks = tiny.player(MODEL, kind=kind, thought_tokens=2), tiny.tasks(8)
    passes = 0

    def counted(*arguments: Any) -> Pass:
        nonlocal passes
        passes += 1
        return plan_pass(*arguments)

    def played() -> tuple[list[Episode], int]:
        before, seats = passes, [games.make("toy") for _ in range(8)]
        return collect(player, seats, tasks, SAMPLED, seed="0", context=640), passes - before

    monkeypatch.setattr(engine_module, "plan_pass", counted)
    plain, usual = played()
    monkeypatch.setattr(engine_module, "ON_CPU", ON_GPU)
    monkeypatch.setattr(trie_module, "LOOK", look)
    player = tiny.player(MODEL, kind=kind, thought_tokens=2)  # tries remember how far they are read
    ahead, needed = played()
    close(ahead, plain)
    rounds = max(episode.steps for episode in plain)
    longest = max(len(turn.branches) for episode in plain for turn in episode.turns)
    assert longest > 1  # else there is nothing to save
    if kind == "choose":
        assert usual > rounds
        assert needed == rounds if look == 32 else rounds <= needed <= usual
    else:
        assert needed < usual if look == 32 else needed <= usual


def test_a_look_ahead_where_nothing_is_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """In all rows, then in one of them."""
    monkeypatch.setattr(engine_module, "ON_CPU", ON_GPU)
    player, ids = tiny.policy(MODEL), [1, 2, 3]
    engine, rng = Engine(MODEL.base_lm(), 3, 96), random.Random(0)
    alone = player.act(engine, [Query(row, ("look",), 3, rng, ids) for row in range(3)], SAMPLED)
    assert [decision.action for decision in alone] == ["look"] * 3 and engine.lengths == [3, 3, 3]
    mixed = [Query(0, ("look",), 6, rng, ids), Query(1, ("look", "open sack", "open box"), 4, rng, [4])]
    forced, chosen = player.act(engine, mixed, SAMPLED)
    assert (forced.log_prob, forced.branches, tuple(forced.taken)) == (0.0, [], player.encoder.action("look"))
    assert chosen.log_prob < 0 and tuple(chosen.taken) == player.encoder.action(chosen.action)
    assert engine.lengths == [6, 4, 3]


def test_episodes_call_a_policy_by_its_kind() -> None:
    """Otherwise games of several kinds are mixed up where they are grouped by player."""
    for kind in ("choose", "aligned", "write"):
        (played,) = collect(tiny.player(MODEL, kind=kind), [games.make("toy")], tiny.tasks(1), SAMPLED, seed="0")
        assert played.player == kind


def test_a_batch_of_1_plays_like_a_batch_of_16() -> None:
    tasks = tiny.tasks(16)
    together = play(tasks, 16)
    close(together, play(tasks, 1))
    assert len({tuple(line) for line in actions(together)}) > 8  # they are different games, not one
    assert len({episode.steps for episode in together}) > 1  # of different lengths, so slots fell empty


def test_seeds_fix_the_draws_of_a_place_in_the_list() -> None:
    tasks = tiny.tasks(6)
    first = play(tasks, 6, seed="a")
    assert first == play(tasks, 6, seed="a")
    assert actions(first) != actions(play(tasks, 6, seed="b"))
    # the same game twice in one list is played with different draws
    assert len({tuple(line) for line in actions(play([tasks[0]] * 4, 4))}) > 1


def test_greedy_play_needs_no_seed() -> None:
    tasks = tiny.tasks(6)
    greedy = play(tasks, 6, GREEDY, seed="a")
    assert greedy == play(tasks, 6, GREEDY, seed="b")
    assert actions(greedy) == actions(play(tasks, 2, GREEDY))


def test_episodes_come_in_the_order_of_their_tasks_with_few_slots_or_many() -> None:
    tasks = tiny.tasks(7)
    finished: list[Episode] = []
    seats = [games.make("toy") for _ in range(3)]
    episodes = collect(tiny.policy(MODEL), seats, tasks, SAMPLED, seed="0", context=640, on_episode=finished.append)
    assert [episode.task for episode in episodes] == tasks
    assert sorted(map(id, finished)) == sorted(map(id, episodes))
    assert finished != episodes  # games end in an order of their own: the third seat did not wait for the first
    close(episodes, play(tasks, 20))
    assert play([], 3) == []


def test_what_is_stored_adds_up() -> None:
    for episode in play(tiny.tasks(12), 12):
        assert episode.player == "choose"
        assert not episode.failed
        assert 1 <= episode.steps <= tiny.LIMIT
        assert (episode.outcome is Outcome.LIMIT) <= (episode.steps == tiny.LIMIT)
        assert sum(turn.reward for turn in episode.turns) == pytest.approx(episode.score)
        for turn in episode.turns:
            assert turn.action in (turn.observation.actions or ())
            assert turn.log_prob <= 0 <= turn.entropy
            assert turn.entropy <= sum(math.log(len(branch.children)) for branch in turn.branches) + 1e-6


def test_a_segment_is_the_pieces_of_the_transcript_and_only_ever_grows() -> None:
    encoder = tiny.encoder()
    for episode in play(tiny.tasks(6), 3):
        (segment,) = episode.segments
        ids = encoder.task(episode.turns[0].observation.goal, episode.task.limit)
        for turn in episode.turns:
            ids += encoder.observation(turn.observation.text)
            # what the policy saw at this turn is a prefix of what it saw at the next
            assert segment.ids[: turn.state_position + 1] == ids
            ids += encoder.action(turn.action)
            for branch in turn.branches:
                assert segment.ids[branch.position + 1] == branch.children[branch.chosen]
        assert segment.ids == ids


@torch.no_grad()
def trained_view(
    model: PolicyModel, episodes: Sequence[Episode], temperature: float
) -> list[tuple[float, float, float]]:
    """(log_prob, entropy, value) of every turn as training computes them: one pass over the packed batch."""
    batch = collate(samples(episodes))
    reading = model(*batch.inputs)
    log_probs_NC = branch_log_probs(reading.logits_NC, temperature)
    chosen_N = log_probs_NC.gather(1, batch.chosen_N[:, None]).squeeze(1)
    turns = torch.zeros(len(batch.turn_row_T), 2)
    turns.index_add_(0, batch.node_turn_N, torch.stack([chosen_N, node_entropies(log_probs_NC)], 1))
    return [(*pair, value) for pair, value in zip(turns.tolist(), reading.values_T.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("temperature", "context", "slots"),
    [(1.0, 640, 8), (0.6, 640, 8), (1.0, 320, 5)],
    ids=["plain", "tempered", "several segments"],
)
def test_training_computes_what_the_engine_computed(temperature: float, context: int, slots: int) -> None:
    episodes = play(tiny.tasks(12), slots, Decoding(temperature=temperature), context=context)
    assert (context == 320) == any(len(episode.segments) > 1 for episode in episodes)
    played = [turn for episode in episodes for turn in episode.turns]
    found = trained_view(MODEL, episodes, temperature)
    assert len(found) == len(played) > 60
    for turn, (log_prob, entropy, value) in zip(played, found, strict=True):
        assert turn.log_prob == pytest.approx(log_prob, abs=1e-5)
        assert turn.entropy == pytest.approx(entropy, abs=1e-5)
        assert turn.value == pytest.approx(value, abs=1e-5)
    assert min(turn.log_prob for turn in played) < -1  # there was something to decide
    assert max(abs(turn.value) for turn in played) > 0.01  # and something to value


@pytest.mark.parametrize("context", [640, 200], ids=["one segment", "the last observation in a new one"])
def test_what_a_game_at_its_limit_shows_last_has_the_critics_value(context: int) -> None:
    tasks = [replace(task, limit=4) for task in tiny.tasks(24)]
    plain, valued = (play(tasks, 5, context=context, values_limit=switch) for switch in (False, True))
    assert actions(plain) == actions(valued)  # to read on changes nothing that is played
    assert [e.outcome for e in plain] == [e.outcome for e in valued]
    cut = [e for e in valued if e.outcome is Outcome.LIMIT]
    assert 0 < len(cut) < len(valued)
    assert (context == 200) == any(e.turns[-1].segment < len(e.segments) - 1 for e in cut)
    assert {e.last_value for e in [*plain, *valued] if e not in cut} == {0.0}
    for episode in cut:
        assert episode.final is not None
        place, segment = len(episode.segments) - 1, episode.segments[-1].ids
        shown = tiny.encoder().observation(episode.final.text)
        assert segment[-len(shown) :] == shown
        state = replace(episode.turns[-1], segment=place, state_position=len(segment) - 1, branches=())
        *_, (_, _, value) = trained_view(MODEL, [replace(episode, turns=(*episode.turns, state))], 1.0)
        assert episode.last_value == pytest.approx(value, abs=1e-5)
    assert len({round(e.last_value, 4) for e in cut}) > len(cut) / 2


def test_what_is_shown_last_needs_no_room_for_an_action() -> None:
    (task,) = (replace(task, limit=4) for task in tiny.tasks(1))
    (free,) = play([task], 1, context=640, values_limit=True)
    assert free.outcome is Outcome.LIMIT
    (tight,) = play([task], 1, context=len(free.segments[0].ids), values_limit=True)
    assert tight == free


class _Spent(ToyGame):
    """Lists nothing once it is over."""

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        observation, reward, outcome = super().step(action)
        return (replace(observation, actions=()) if outcome else observation), reward, outcome


def test_a_game_that_lists_nothing_at_its_limit_is_at_its_limit() -> None:
    tasks = [replace(task, limit=4) for task in tiny.tasks(6)]
    found = collect(tiny.policy(MODEL), [_Spent(), _Spent()], tasks, SAMPLED, seed="0", context=640, values_limit=True)
    plain = play(tasks, 2, values_limit=True)
    assert [e.outcome for e in found] == [e.outcome for e in plain]
    assert [e.last_value for e in found] == [e.last_value for e in plain]
    assert Outcome.LIMIT in {e.outcome for e in found}


@torch.no_grad()
def test_log_probs_are_products_of_renormalised_children_by_brute_force() -> None:
    """Hugging Face's own forward pass and output layer, one pass for each branching token."""
    (episode,) = play(tiny.tasks(1, start=3), 1)
    for turn in episode.turns:
        total = 0.0
        for branch in turn.branches:
            ids = torch.tensor([episode.segments[0].ids[: branch.position + 1]])
            logits = MODEL.lm(ids).logits[0, -1, list(branch.children)].double()
            total += float(torch.log_softmax(logits, 0)[branch.chosen])
        assert turn.log_prob == pytest.approx(total, abs=1e-5)


@torch.no_grad()
def test_greedy_takes_the_likeliest_child_at_every_node() -> None:
    for episode in play(tiny.tasks(4), 4, GREEDY):
        for turn in episode.turns:
            for branch in turn.branches:
                ids = torch.tensor([episode.segments[0].ids[: branch.position + 1]])
                logits = MODEL.lm(ids).logits[0, -1, list(branch.children)]
                assert logits[branch.chosen] >= logits.max() - 1e-4


def test_a_history_that_outgrows_the_context_goes_on_in_a_new_segment() -> None:
    encoder, context = tiny.encoder(), 160
    episodes = play(tiny.tasks(12), 5, context=context)
    assert max(len(episode.segments) for episode in episodes) > 2
    for episode in episodes:
        assert all(len(segment.ids) <= context for segment in episode.segments)
        assert [turn.segment for turn in episode.turns] == sorted(turn.segment for turn in episode.turns)
        for place, segment in enumerate(episode.segments):
            inside = [turn for turn in episode.turns if turn.segment == place]
            # the task again, then the observation that the history ends with, then pieces as ever
            ids = encoder.task(inside[0].observation.goal, episode.task.limit)
            for turn in inside:
                ids += encoder.observation(turn.observation.text)
                assert turn.state_position == len(ids) - 1
                ids += encoder.action(turn.action)
            assert segment.ids == ids
    # the cut changes what the model sees, not what can happen before it
    whole = play(tiny.tasks(12), 5)
    for cut, one in zip(episodes, whole, strict=True):
        until = sum(turn.segment == 0 for turn in cut.turns)
        assert actions([cut])[0][:until] == actions([one])[0][:until]


def test_an_observation_longer_than_the_context_is_an_error_that_says_so() -> None:
    with pytest.raises(ModelError, match="context of 60") as caught:
        play(tiny.tasks(1), 1, context=60)
    assert "model.context" in caught.value.hint


class Fragile(ToyGame):
    """A toy game that breaks: at its reset for some seeds, at the third step for others."""

    def reset(self, task: Task) -> Observation:
        if task.seed % 5 == 1:
            raise GameError("it would not start")
        self.countdown = 3 if task.seed % 5 == 3 else 1000
        return super().reset(task)

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        self.countdown -= 1
        if self.countdown == 0:
            raise GameError("it broke")
        return super().step(action)


def test_games_that_crash_are_failed_episodes_and_harm_no_neighbour() -> None:
    tasks = tiny.tasks(15)
    healthy = play(tasks, 4)
    finished: list[Episode] = []
    seats = [Fragile() for _ in range(4)]
    broken = collect(tiny.policy(MODEL), seats, tasks, SAMPLED, seed="0", context=640, on_episode=finished.append)
    assert len(finished) == len(broken) == 15
    close([e for e in broken if e.task.seed % 5 not in (1, 3)], [e for e in healthy if e.task.seed % 5 not in (1, 3)])
    for episode, twin in zip(broken, healthy, strict=True):
        if episode.task.seed % 5 == 1:
            assert (episode.outcome, episode.error, episode.turns) == (Outcome.FAILED, "it would not start", ())
            assert episode.final is None
        elif episode.task.seed % 5 == 3 and twin.steps > 2:
            # the two steps before the crash are kept, as they were
            assert (episode.outcome, episode.error, episode.steps) == (Outcome.FAILED, "it broke", 2)
            assert actions([episode])[0] == actions([twin])[0][:2]
            assert episode.final is not None
    assert sum(episode.failed for episode in broken) >= 5


class Silent(ToyGame):
    """A game that cannot list its valid actions."""

    def reset(self, task: Task) -> Observation:
        return replace(super().reset(task), actions=None)


def test_a_game_that_lists_no_actions_is_an_error_that_names_it() -> None:
    with pytest.raises(ModelError, match=r"toy \(seed 0\) lists no valid actions after 0 steps"):
        collect(tiny.policy(MODEL), [Silent()], tiny.tasks(1), SAMPLED, seed="0")


class OddOnes(ToyGame):
    """A game that begins with a very long text for some seeds, and lists no actions for others."""

    def reset(self, task: Task) -> Observation:
        first = super().reset(task)
        if task.seed % 5 == 1:
            return replace(first, text="very " * 400)
        return replace(first, actions=None) if task.seed % 5 == 3 else first


def test_games_that_the_policy_cannot_begin_fail_alone() -> None:
    tasks = tiny.tasks(15)
    healthy = play(tasks, 4, context=300)
    finished: list[Episode] = []
    seats = [OddOnes() for _ in range(4)]
    odd = collect(tiny.policy(MODEL), seats, tasks, SAMPLED, seed="0", context=300, on_episode=finished.append)
    assert sorted(e.task.seed for e in finished) == sorted(task.seed for task in tasks)
    close([e for e in odd if e.task.seed % 5 not in (1, 3)], [e for e in healthy if e.task.seed % 5 not in (1, 3)])
    for episode in odd:
        if episode.task.seed % 5 in (1, 3):
            assert (episode.outcome, episode.turns) == (Outcome.FAILED, ())
            assert ("context of 300" if episode.task.seed % 5 == 1 else "lists no valid actions") in episode.error


def test_where_no_game_can_be_begun_none_counts_as_played() -> None:
    finished: list[Episode] = []
    with pytest.raises(ModelError, match="lists no valid actions"):
        collect(tiny.policy(MODEL), [Silent()], tiny.tasks(3), SAMPLED, seed="0", on_episode=finished.append)
    assert not finished


class Shouting(ToyGame):
    """A game one of whose actions is far longer than any other game's."""

    LONG = "look " + "very " * 18 + "closely"

    def _actions(self) -> tuple[str, ...]:
        return (*super()._actions(), self.LONG)


def test_an_action_of_any_length_finds_room() -> None:
    """97 characters are more than 64 tokens here; a decision for it must not run out of context half way."""
    assert len(tiny.encoder().action(Shouting.LONG)) > 64
    for context in range(200, 260, 20):
        episodes = collect(
            tiny.policy(MODEL), [Shouting() for _ in range(4)], tiny.tasks(8), SAMPLED, seed="0", context=context
        )
        assert all(len(segment.ids) <= context for episode in episodes for segment in episode.segments)
        assert any(turn.action == Shouting.LONG for episode in episodes for turn in episode.turns)


class Swamp(ToyGame):
    """A game of which one seed shows, after two steps, more than the model can read, or names nothing to do."""

    def __init__(self, *, silent: bool) -> None:
        super().__init__()
        self._silent, self._count = silent, 0

    def reset(self, task: Task) -> Observation:
        self._task_seed, self._count = task.seed, 0
        return super().reset(task)

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        observation, reward, outcome = super().step(action)
        self._count += 1
        if self._task_seed == 1 and self._count == 2:
            swamp = {"actions": ()} if self._silent else {"text": "mud " * 400}
            return replace(observation, **swamp), reward, None
        return observation, reward, outcome


@pytest.mark.parametrize(("silent", "error"), [(False, "more than the context of 300"), (True, "no valid actions")])
def test_a_state_that_cannot_be_played_ends_its_game_and_no_other(silent: bool, error: str) -> None:
    seats = [Swamp(silent=silent) for _ in range(4)]
    ended = collect(tiny.policy(MODEL), seats, tiny.tasks(8), SAMPLED, seed="0", context=300)
    healthy = collect(tiny.policy(MODEL), [ToyGame() for _ in range(4)], tiny.tasks(8), SAMPLED, seed="0", context=300)
    for episode, twin in zip(ended, healthy, strict=True):
        if episode.task.seed == 1:
            assert (episode.outcome, episode.steps) == (Outcome.FAILED, 2)
            assert error in episode.error
        else:
            assert actions([episode]) == actions([twin])


def test_seats_that_cannot_be_played_in_are_refused() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        collect(tiny.policy(MODEL), [games.make("toy")] * 2, tiny.tasks(4), GREEDY, seed="0")
    with pytest.raises(ConfigError, match="no game to play 4 tasks"):
        collect(tiny.policy(MODEL), [], tiny.tasks(4), GREEDY, seed="0")
    assert collect(tiny.policy(MODEL), [], [], GREEDY, seed="0") == []


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_what_nothing_can_be_drawn_with_is_refused(temperature: float) -> None:
    with pytest.raises(ConfigError, match="temperature"):
        Decoding(temperature=temperature)


def test_half_a_character_is_named() -> None:
    with pytest.raises(DataError, match="half characters"):
        tiny.encoder().observation("a \ud800 hall")


class _Tells(ToyGame):
    """Its last observation is longer than any context."""

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        observation, reward, outcome = super().step(action)
        return (replace(observation, text="word " * 900) if outcome else observation), reward, outcome


def test_a_game_at_its_limit_that_then_says_too_much_is_over_with_the_value_before_its_last_step() -> None:
    tasks = tiny.tasks(3, limit=2)
    plain, valued = (
        collect(tiny.policy(MODEL), [_Tells(), _Tells()], tasks, SAMPLED, seed="0", context=640, values_limit=switch)
        for switch in (False, True)
    )
    assert Outcome.LIMIT in {episode.outcome for episode in plain}
    assert [(e.outcome, e.turns) for e in plain] == [(e.outcome, e.turns) for e in valued]
    cut = [episode for episode in valued if episode.outcome is Outcome.LIMIT]
    assert cut and all(episode.last_value == episode.turns[-1].value != 0 for episode in cut)


class _Alike(ToyGame):
    """From some step on it lists two actions that are one line of text."""

    def __init__(self, since: int) -> None:
        super().__init__()
        self._since = since

    def _observation(self, text: str) -> Observation:
        observation = super()._observation(text)
        more = ("say a\nb", "say a b") if self._steps >= self._since else ()
        return replace(observation, actions=tuple(sorted({*(observation.actions or ()), *more})))


@pytest.mark.parametrize("kind", ["choose", "aligned", "score", "think"])
@pytest.mark.parametrize("since", [0, 1])
def test_a_game_whose_actions_cannot_be_told_apart_fails_alone(kind: str, since: int) -> None:
    policy = tiny.player(MODEL, kind=kind, thought_tokens=2)
    broken, whole = collect(policy, [_Alike(since), ToyGame()], tiny.tasks(2, limit=4), SAMPLED, seed="0", context=640)
    assert broken.failed and "cannot be told apart" in broken.error
    assert broken.steps == since
    assert not whole.failed
