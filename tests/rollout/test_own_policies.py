"""What users build on policies and players: mistakes are named, and exploring leaves no wrong transcript."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import tiny
from grue import games
from grue.engine.engine import Engine
from grue.errors import ConfigError, ModelError
from grue.evaluate.evaluate import evaluate
from grue.evaluate.summary import summarise
from grue.games.faults import Guarded
from grue.games.play import play
from grue.games.teachers import teacher
from grue.models.policy_model import PolicyModel
from grue.policy.aligned import AlignedPolicy
from grue.policy.choose import ChoosePolicy
from grue.policy.decision import Decision, Decoding, Query, read
from grue.rollout.collect import collect
from grue.rollout.pack import tokenise
from grue.rollout.player import PolicyPlayer
from grue.types import Episode, Observation, Outcome, Task

CONTEXT = 640


def seats(count: int = 3) -> list[games.Game]:
    return [games.make("toy") for _ in range(count)]


class Exploring(ChoosePolicy):
    """Takes a random valid action at every other turn. `careful` is what the contract asks for."""

    def __init__(self, model: PolicyModel, encoder: Any, careful: bool) -> None:
        super().__init__(model, encoder)
        self.careful, self.turns = careful, 0

    def act(self, engine: Engine, queries: Sequence[Query], decoding: Decoding) -> list[Decision]:
        self.turns += 1
        if self.turns % 2:
            return super().act(engine, queries, decoding)
        decisions = read(self.model, engine, queries)[1] if self.careful else [Decision(query) for query in queries]
        for decision in decisions:
            decision.action = decision.query.rng.choice(decision.query.actions)
            decision.taken = list(self.encoder.action(decision.action))
        return decisions


def test_a_policy_that_explores_by_itself_must_have_the_observation_read() -> None:
    plain = tiny.policy()
    tasks = tiny.tasks(3)
    with pytest.raises(
        ModelError, match=r"act of Exploring left \d+ ids in a row of the engine that should hold"
    ) as found:
        collect(
            Exploring(plain.model, plain.encoder, careful=False), seats(), tasks, Decoding(), seed="0", context=CONTEXT
        )
    assert "grue.policy.decision.read" in found.value.hint
    exploring = Exploring(plain.model, plain.encoder, careful=True)
    for episode in collect(exploring, seats(), tasks, Decoding(), seed="0", context=CONTEXT):
        drawn = [turn for turn in episode.turns if turn.branches]
        assert drawn and len(drawn) < episode.steps
        for turn in drawn:  # what was decided is what the transcript as it is would give
            weighed = dict(plain.weigh(turn, episode.segments[turn.segment].ids, 1.0))
            assert torch.tensor(weighed[turn.action]).log() == pytest.approx(turn.log_prob, abs=1e-4)


class Swapping:
    """Plays another action than it decided on, and leaves the branches as they were."""

    encoder: Any

    def act(self, engine: Engine, queries: Sequence[Query], decoding: Decoding) -> list[Decision]:
        decisions: list[Decision] = super().act(engine, queries, decoding)  # type: ignore[misc]
        for decision in decisions:
            other = next(action for action in decision.query.actions if action != decision.action)
            engine.reset(decision.query.row, decision.query.offset)
            decision.action, decision.taken, decision.fed = other, list(self.encoder.action(other)), 0
        return decisions


class SwappingChoose(Swapping, ChoosePolicy):
    pass


class SwappingAligned(Swapping, AlignedPolicy):
    pass


@pytest.mark.parametrize("kind", ["choose", "aligned"])
def test_branches_that_lead_to_another_action_are_refused(kind: str) -> None:
    plain = tiny.player(kind=kind, min_p=0.0)
    policy = (SwappingChoose if kind == "choose" else SwappingAligned)(plain.model, plain.encoder)
    with pytest.raises(ModelError, match=r"act of Swapping\w* decided on '.*', but its branches lead elsewhere"):
        collect(policy, seats(), tiny.tasks(3), Decoding(), seed="0", context=CONTEXT)


class Mixed(ChoosePolicy):
    """Every child is drawn with at least half of what chance would give it."""

    def draw_nodes(self, decisions: Sequence[Decision], logits_BC: torch.Tensor, decoding: Decoding) -> None:
        there_BC = logits_BC > -torch.inf
        chance_BC = there_BC / there_BC.sum(-1, keepdim=True)
        super().draw_nodes(decisions, (0.5 * torch.softmax(logits_BC, -1) + 0.5 * chance_BC).log(), decoding)


@pytest.mark.parametrize("looks_ahead", [True, False])
def test_what_draws_in_another_way_does_so_with_look_ahead_too(looks_ahead: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(ChoosePolicy, "looks_ahead", looks_ahead)
    plain = tiny.policy()
    whole = Engine.__init__

    def ahead(self: Engine, *args: Any, **kwargs: Any) -> None:
        whole(self, *args, **kwargs)
        self.looks_ahead = True  # as on a GPU

    monkeypatch.setattr(Engine, "__init__", ahead)
    policy = Mixed(plain.model, plain.encoder)
    for episode in collect(policy, seats(), tiny.tasks(3), Decoding(), seed="0", context=CONTEXT):
        for turn in episode.turns:
            pi = dict(plain.weigh(turn, episode.segments[turn.segment].ids, 1.0))[turn.action]
            if len(turn.branches) == 1:
                (branch,) = turn.branches
                mixed = 0.5 * pi + 0.5 / len(branch.children)
                assert turn.log_prob == pytest.approx(torch.tensor(mixed).log().item(), abs=1e-3)
            assert turn.log_prob >= sum(-torch.tensor(2.0 * len(b.children)).log() for b in turn.branches) - 1e-4


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda queries: [query.actions[0] for query in queries], "no list of 3 Decisions"),
        (lambda queries: [Decision(queries[0])], "no list of 3 Decisions"),
        (lambda queries: [Decision(query, action=query.actions[0]) for query in queries], "a Decision without ids"),
    ],
)
def test_an_answer_that_is_no_list_of_decisions_is_named(answer: Callable[[Any], Any], said: str) -> None:
    class Wrong(ChoosePolicy):
        def act(self, engine: Engine, queries: Sequence[Query], decoding: Decoding) -> list[Decision]:
            return answer(queries)  # type: ignore[no-any-return]

    with pytest.raises(ModelError, match=f"act of Wrong gave {said}"):
        collect(
            Wrong(tiny.policy().model, tiny.encoder()), seats(), tiny.tasks(3), Decoding(), seed="0", context=CONTEXT
        )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"policy": None}, "a policy is what load_policy and make_policy give, not NoneType"),
        ({"games": games.make("toy")}, "is not a list of games"),
        ({"tasks": tiny.tasks(1)[0]}, "tasks is not a list of tasks"),
        ({"decoding": "greedy"}, "is no Decoding"),
    ],
)
def test_collect_says_which_argument_is_wrong(changed: dict[str, Any], said: str) -> None:
    given = {"policy": tiny.policy(), "games": seats(), "tasks": tiny.tasks(3), "decoding": Decoding()} | changed
    with pytest.raises(ConfigError, match=said):
        collect(*given.values(), seed="0", context=CONTEXT)


def player() -> PolicyPlayer:
    return PolicyPlayer(tiny.policy(), name="x", context=CONTEXT, limit=tiny.LIMIT, decoding=Decoding(greedy=True))


def test_a_loaded_policy_given_to_collect_is_told_apart() -> None:
    with pytest.raises(ConfigError, match="not PolicyPlayer") as found:
        collect(player(), seats(), tiny.tasks(3), Decoding(), seed="0", context=CONTEXT)  # type: ignore[arg-type]
    assert "policy.policy" in found.value.hint


def test_the_transcript_holds_what_was_played_instead() -> None:
    """Along the teacher's path, whatever the policy names: the ids are those of the teacher's game."""
    game, task, mine = games.make("toy"), tiny.tasks(1)[0], player()
    gold = play(game, task, teacher("gold", game))
    observation = game.reset(task)
    mine.start(task, observation)
    named = []
    for turn in gold.turns:
        named.append(mine.act(observation))
        mine.played(turn.action)
        observation, _, _ = game.step(turn.action)
    assert named != [turn.action for turn in gold.turns]
    (told,), expected = mine.segments(), tokenise(gold, mine.policy, CONTEXT)
    assert told == expected.segments[0]
    fresh = player()
    fresh.start(task, gold.turns[0].observation)
    for turn in gold.turns[:-1]:
        fresh.act(turn.observation)
        fresh.played(turn.action)
    fresh.act(gold.turns[-1].observation)
    assert fresh.decision is not None
    again = dict(fresh.policy.weigh(expected.turns[-1], expected.segments[0].ids, 1.0))
    assert fresh.decision.log_prob == pytest.approx(torch.tensor(again[fresh.decision.action]).log().item(), abs=1e-4)


def test_what_can_be_asked_of_a_player_between_two_actions() -> None:
    game, task, mine = games.make("toy"), tiny.tasks(1)[0], player()
    assert mine.transcript == ""
    for ask in (lambda: mine.played("look"), mine.probabilities):
        with pytest.raises(ModelError, match="has been named"):
            ask()
    observation = game.reset(task)
    mine.start(task, observation)
    action = mine.act(observation)
    weighed = mine.probabilities()
    assert sorted(each for each, _ in weighed) == [*(observation.actions or ())]
    assert sum(share for _, share in weighed) == pytest.approx(1, abs=1e-4)
    assert mine.decision is not None
    assert dict(weighed)[action] == pytest.approx(torch.tensor(mine.decision.log_prob).exp().item(), abs=1e-4)
    assert observation.goal in mine.transcript and mine.transcript.rstrip().endswith(f"> {action}")
    mine.played(action)  # the same: nothing changes, and it is still the decided one
    assert mine.decision is not None
    mine.played("sing a song")
    assert mine.transcript.rstrip().endswith("> sing a song") and f"> {action}" not in mine.transcript
    with pytest.raises(ModelError, match="could be replaced"):
        mine.played("look")


class Shaped:
    """A wrapper as one writes it: outcomes as plain text, everything else forwarded."""

    def __init__(self, game: games.Game) -> None:
        self.game = game

    def __getattr__(self, name: str) -> Any:
        return getattr(self.game, name)

    def reset(self, task: Task) -> Observation:
        return self.game.reset(task)

    def step(self, action: str) -> tuple[Observation, float, Any]:
        observation, reward, outcome = self.game.step(action)
        return observation, reward - 0.01, None if outcome is None else str(outcome)


def test_a_wrapper_that_forwards_has_teachers_and_its_plain_outcomes_count() -> None:
    guarded, tasks = Guarded(Shaped(games.make("toy"))), tiny.tasks(2)  # type: ignore[arg-type]
    assert play(guarded, tasks[0], teacher("gold", guarded)).won
    inner = games.make("toy")
    plain: Any = Shaped(inner)
    episode = play(plain, tasks[0], teacher("gold", inner))
    assert episode.outcome is Outcome.WON and summarise([episode], fold="train")["success"] == 1
    played = collect(tiny.policy(), [plain], tasks, Decoding(), seed="0", context=CONTEXT)
    assert all(isinstance(each.outcome, Outcome) for each in played)


def test_dropout_that_a_loop_left_on_is_off_in_play() -> None:
    policy, tasks = tiny.policy(dropout_model()), tiny.tasks(3)

    def numbers() -> list[float]:
        policy.model.train()
        played = evaluate(policy, seats(), tasks, Decoding(greedy=True), context=CONTEXT)
        return [turn.log_prob for episode in played for turn in episode.turns]

    assert numbers() == numbers()
    mine = PolicyPlayer(policy, name="x", context=CONTEXT, limit=tiny.LIMIT, decoding=Decoding(greedy=True))
    policy.model.train()
    mine.start(tasks[0], games.make("toy").reset(tasks[0]))
    assert not policy.model.training


def dropout_model() -> PolicyModel:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=len(tiny.tokenizer()), n_positions=1024, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.5
    )
    torch.manual_seed(0)
    return PolicyModel(GPT2LMHeadModel(config))


def test_games_kept_without_turns_say_nothing_of_steps() -> None:
    game, task = games.make("toy"), tiny.tasks(1)[0]
    whole = play(game, task, teacher("gold", game))
    outline: Episode = replace(whole, turns=(), segments=())
    row, kept = summarise([whole], fold="train"), summarise([outline], fold="train")
    assert row["steps_mean"] == whole.steps and row["return_mean"] == row["best_score"] == 1
    assert kept["steps_mean"] is kept["return_mean"] is kept["best_score"] is None
    assert kept["success"] == row["success"] == 1


def test_nothing_can_be_replaced_after_a_call_that_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    game, task, mine = games.make("toy"), tiny.tasks(1)[0], player()
    observation = game.reset(task)
    mine.start(task, observation)
    observation, _, _ = game.step(mine.act(observation))

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mine.policy, "act", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mine.act(observation)
    with pytest.raises(ModelError, match="no action has been named"):
        mine.played("look")
    assert observation.text in mine.transcript  # and it goes on
    mine.act(observation)
    mine.played("look")
    assert mine.transcript.count(observation.text) == 1
