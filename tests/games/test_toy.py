"""The toy keeps the contract of every game, without Java; and the contract's checker finds breaches."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from grue import games
from grue.errors import ConfigError, GameError
from grue.games.check import check_game
from grue.games.guard import as_played, clean_action
from grue.games.play import play
from grue.games.teachers import teacher
from grue.games.toy import ToyGame
from grue.types import Observation, Outcome, Task

TASK = Task("toy", "", "train", 7, 16)


@pytest.mark.parametrize("fold", games.FOLDS)
def test_the_toy_keeps_the_contract(fold: str) -> None:
    for task in games.tasks("toy", "rooms=4", fold, 16, count=20):
        check_game(lambda: games.make("toy"), task)


@pytest.mark.parametrize("name", ["gold", "gold-pruned"])
def test_gold_always_wins(name: str) -> None:
    game = games.make("toy")
    player = teacher(name, game)
    episodes = [play(game, task, player) for task in games.tasks("toy", "", "dev", 16, count=100)]
    assert all(episode.won and episode.score == 1.0 for episode in episodes)
    assert len({episode.turns[0].observation.text for episode in episodes}) > 50
    assert {round(turn.reward, 2) for episode in episodes for turn in episode.turns} == {0.0, 0.25}


def test_every_outcome_can_happen() -> None:
    game = games.make("toy")
    player = teacher("random", game)
    outcomes = {play(game, task, player).outcome for task in games.tasks("toy", "", "train", 12, count=200)}
    assert outcomes >= {Outcome.LOST, Outcome.LIMIT, Outcome.WON}


def test_poison_loses_and_keeps_the_score() -> None:
    game = ToyGame()
    for task in games.tasks("toy", "", "train", 16, count=50):
        observation = game.reset(task)
        if "drink potion" in (observation.actions or ()):
            break
    _, reward, outcome = game.step("drink potion")
    assert (reward, outcome) == (0.0, Outcome.LOST)


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean rooms"):
        games.make("toy", "room=3")
    with pytest.raises(ConfigError, match="2 to 6"):
        games.tasks("toy", "rooms=9", "train", 16)
    with pytest.raises(ConfigError, match="outside fold"):
        ToyGame().reset(replace(TASK, seed=5000))


def test_the_toy_needs_no_java_and_no_heavy_import() -> None:
    code = (
        "import sys; from grue import games; g = games.make('toy'); g.reset(games.tasks('toy', '', 'train', 9, 1)[0]);"
        "print([m for m in ('py4j', 'torch', 'transformers', 'textworld_express') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_crash_in_the_middle_is_a_failed_episode() -> None:
    class Crashing(ToyGame):
        def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
            if self._steps == 2:
                raise GameError("the engine is gone")
            return super().step(action)

    game = Crashing()
    episode = play(game, TASK, teacher("random", game))
    assert (episode.outcome, episode.steps) == (Outcome.FAILED, 2)
    assert "engine is gone" in episode.error
    assert episode.final is not None


class _LateLimit(ToyGame):
    def reset(self, task: Task) -> Observation:
        return super().reset(replace(task, limit=task.limit + 1))


class _Unsorted(ToyGame):
    def _actions(self) -> tuple[str, ...]:
        return super()._actions()[::-1]


class _Generous(ToyGame):
    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        observation, reward, outcome = super().step(action)
        return observation, reward + 0.5, outcome


class _AnySeed(ToyGame):
    def reset(self, task: Task) -> Observation:
        return super().reset(replace(task, fold="train", seed=task.seed % 1000))


class _Crashing(ToyGame):
    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        self.count = getattr(self, "count", 0) + 1
        return super().step(action) if self.count < 3 else (1 // 0)


class _ShortGold(ToyGame):
    def gold(self) -> list[str]:
        return super().gold()[:-1]


@pytest.mark.parametrize(
    ("breach", "promise"),
    [
        (_LateLimit, "ends at step 1"),
        (_Unsorted, "sorted"),
        (
            _Generous,
            r"rewards add up to the score, but they add up to 0.5, the score .* by 0 \(train seed 7.* step 1: '",
        ),
        (_AnySeed, "refused"),
        (_ShortGold, r"way to win, but after its 6 actions the game goes on \(train seed 7, limit 1000, step 6"),
        (_Crashing, r"raised ZeroDivisionError: .* \(train seed 7, limit 8, step 3: '"),
    ],
)
def test_the_checker_finds_breaches(breach: type[ToyGame], promise: str) -> None:
    with pytest.raises(GameError, match=promise):
        check_game(breach, TASK)


class _Polite(ToyGame):
    """Its solution is in words that are not listed."""

    def gold(self) -> list[str]:
        return [f"please {action}" for action in super().gold()]

    def equivalent(self, action: str, then: Sequence[str] = ()) -> str:
        assert [action, *then] == self.gold()[-1 - len(then) :]
        return action.removeprefix("please ")


@pytest.mark.parametrize("name", ["gold", "gold-pruned"])
def test_gold_is_said_in_listed_words(name: str) -> None:
    game = _Polite()
    episode = play(game, TASK, teacher(name, game))
    assert episode.won and all(turn.valid for turn in episode.turns)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("  open   fridge \n", "open fridge"),
        ("open\tfridge\r\nand more", "open fridge and more"),
        ("a\x00b\x1b[2J", "a?b?[2J"),
        ("\udcff", "?"),
        ("x" * 500, "x" * 300),
        ("", ""),
        ("naïve 名", "naïve 名"),
    ],
)
def test_actions_become_one_clean_line(raw: str, clean: str) -> None:
    assert clean_action(raw) == clean


def test_capital_letters_do_not_make_another_action() -> None:
    listed = ("ask Bob", "ask bob", "go east", "look")
    assert [as_played(said, listed) for said in ("Go  East", "LOOK", "ask bob", "Ask bob", "Jump")] == [
        "go east",
        "look",
        "ask bob",
        "Ask bob",  # which one?
        "Jump",
    ]
    assert as_played("Look", None) == "Look"
