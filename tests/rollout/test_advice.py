"""A teacher looks on while a policy plays; what it would have done is what the policy learns at those states."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import tiny
from grue import games
from grue.errors import GameError
from grue.games.teachers import Adviser, teacher
from grue.games.toy import ToyGame
from grue.policy.decision import Decoding
from grue.policy.policy import Policy
from grue.rollout.collect import collect
from grue.rollout.pack import collate, samples, tokenise
from grue.storage.episodes import from_dict, to_dict
from grue.types import Episode, Observation, Task

COLUMNS = 512
CW16 = "numLocations=3,numIngredients=2,numDistractorItems=2,includeDoors=1"


def advised(policy: Policy, count: int = 12) -> list[Episode]:
    """Toy games that a policy plays and the optimal teacher comments on."""
    seats = [games.make("toy") for _ in range(6)]
    return collect(policy, seats, tiny.tasks(count), Decoding(), seed="0", context=COLUMNS, adviser="optimal")


def test_looking_on_changes_nothing_that_is_played() -> None:
    policy = tiny.policy()
    seats = [games.make("toy") for _ in range(6)]
    alone = collect(policy, seats, tiny.tasks(12), Decoding(), seed="0", context=COLUMNS)
    commented = advised(policy)
    assert {turn.advice for episode in alone for turn in episode.turns} == {""}
    assert all(turn.advice for episode in commented for turn in episode.turns)
    for one, other in zip(alone, commented, strict=True):
        assert replace(other, turns=tuple(replace(turn, advice="") for turn in other.turns)) == one


def test_advice_wins_from_wherever_the_policy_has_come_to() -> None:
    game = games.make("toy")
    for episode in advised(tiny.policy()):
        for place in (0, len(episode.turns) // 2):
            game.reset(replace(episode.task, limit=60))
            for turn in episode.turns[:place]:
                game.step(turn.action)
            adviser, won = Adviser(teacher("optimal", game)), False
            observation, outcome = game.step("look")[0], None
            while outcome is None:
                observation, _, outcome = game.step(adviser.advice(observation))
                won = outcome == "won"
            assert won


@pytest.mark.parametrize("kind", ["choose", "aligned", "score", "write", "think"])
def test_the_lesson_is_the_advice_up_to_where_the_actions_part(kind: str) -> None:
    policy = tiny.player(kind=kind)
    parted = 0
    for episode in advised(policy):
        found = tokenise(episode, policy, COLUMNS, advised=True)
        assert found.segments == tokenise(episode, policy, COLUMNS).segments  # what was done is what is read
        for turn, played in zip(found.turns, episode.turns, strict=True):
            own = policy.lesson(turn.observation.actions or (), played.advice, turn.state_position)
            assert turn.branches == own.branches[: len(turn.branches)]
            ids = found.segments[turn.segment].ids
            wrong = [b for b in turn.branches if not turn.candidates and b.children[b.chosen] != ids[b.position + 1]]
            if turn.candidates or played.advice == turn.action:
                assert turn.branches == own.branches
                assert not wrong
            else:
                assert wrong == [turn.branches[-1]]
                parted += 1
    assert parted > 10 or kind == "score"


def test_what_nobody_knew_is_context() -> None:
    policy = tiny.policy()
    episode = advised(policy)[0]
    silent = replace(episode, turns=(replace(episode.turns[0], advice=""), *episode.turns[1:]))
    found = tokenise(silent, policy, COLUMNS, advised=True)
    assert found.turns[0].branches == ()
    assert found.segments == tokenise(episode, policy, COLUMNS, advised=True).segments
    (sample,) = samples([found])
    batch = collate([sample])
    assert 0 not in batch.node_turn_N.tolist()
    assert len(batch.node_turn_N) > 0


def test_advice_survives_the_file() -> None:
    for episode in advised(tiny.policy(), 3):
        assert from_dict(to_dict(episode)) == episode


def test_a_teacher_that_remembers_its_own_steps_follows_those_of_others() -> None:
    """The exploring cook keeps a map: were it told nothing, it would take itself to be where it advised to go."""
    from grue.games.twx.game import TwxGame

    game, won = TwxGame("cookingworld", CW16), 0
    tasks = games.tasks("cookingworld", CW16, "dev", 80, count=8)
    for task in tasks:
        rng, cook = random.Random(task.seed), Adviser(teacher("explore", game))
        observation, outcome = game.reset(task), None
        cook.start(task, observation)
        for step in range(80):
            advice = cook.advice(observation)
            ways = [a for a in observation.actions or () if a.startswith(("move ", "open "))]
            action = rng.choice(ways) if step < 10 and ways else advice or "look around"
            observation, _, outcome = game.step(action)
            cook.saw(action)
            if outcome is not None:
                break
        won += outcome == "won"
    game.close()
    assert won == len(tasks)


def test_a_teacher_that_cannot_play_the_game_is_refused() -> None:
    with pytest.raises(GameError, match="explore"):
        collect(
            tiny.policy(), [games.make("toy")], tiny.tasks(1), Decoding(), seed="0", context=COLUMNS, adviser="explore"
        )


class SolvedAtTimes(ToyGame):
    """Its solution is known in every second game."""

    def reset(self, task: Task) -> Observation:
        self._seed = task.seed
        return super().reset(task)

    def gold(self) -> list[str]:
        if self._seed % 2:
            raise GameError("no solution is on file")
        return super().gold()


def test_a_teacher_that_is_lost_in_one_game_corrects_the_others() -> None:
    tasks, seats = tiny.tasks(8), [SolvedAtTimes() for _ in range(2)]
    played = collect(tiny.policy(), seats, tasks, Decoding(), seed="0", context=COLUMNS, adviser="gold")
    for task, episode in zip(tasks, played, strict=True):
        assert not episode.failed
        assert bool(episode.turns[0].advice) == (task.seed % 2 == 0)
        assert task.seed % 2 == 0 or not any(turn.advice for turn in episode.turns)
    assert {task.seed % 2 for task in tasks} == {0, 1}
    game = SolvedAtTimes()
    adviser, odd = Adviser(teacher("gold", game)), next(task for task in tasks if task.seed % 2)
    observation = game.reset(odd)
    adviser.start(odd, observation)
    assert adviser.advice(observation) == "" and adviser.trouble == "no solution is on file"


def test_a_teacher_is_told_of_every_action(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(Adviser, "saw", lambda self, action: told.append(action))
    played = advised(tiny.policy(), 3)
    assert len(told) == sum(episode.steps for episode in played)
    assert sorted(told) == sorted(turn.action for episode in played for turn in episode.turns)
