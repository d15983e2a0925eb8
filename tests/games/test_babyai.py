"""BabyAI as a text game: described, played by its bot, replanned from any state."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("minigrid", reason="pip install -e '.[babyai]'")

from grue import games
from grue.errors import ConfigError
from grue.games.babyai.game import LEVELS, BabyAIGame, describe
from grue.games.check import check_game
from grue.games.play import play
from grue.games.teachers import teacher
from grue.types import Outcome, Task


def first(level: int, fold: str = "train", limit: int = 100, count: int = 1) -> list[Task]:
    return games.tasks("babyai", f"level={level}", fold, limit, count=count)


@pytest.mark.parametrize("level", [0, 3, 4, 6, 7, 11])
def test_levels_keep_the_contract_and_the_bot_wins(level: int) -> None:
    tasks = first(level, limit=300, count=5)
    check_game(lambda: games.make("babyai", f"level={level}"), tasks[0])
    game = games.make("babyai", f"level={level}")
    for task in tasks:
        episode = play(game, task, teacher("gold", game))
        assert episode.outcome is Outcome.WON, (LEVELS[level], task.seed, episode.error)
        assert all(turn.valid for turn in episode.turns)
    game.close()


@pytest.mark.parametrize("level", [2, 4])
def test_the_bot_wins_from_any_state(level: int) -> None:
    game, draw = BabyAIGame("babyai", f"level={level}"), random.Random(0)
    for task in first(level, "dev", count=5):
        observation = game.reset(task)
        outcome = None
        for _ in range(6):
            observation, _, outcome = game.step(draw.choice(observation.actions or ()))
            if outcome is not None:
                break
        kept = list[str]()
        while outcome is None:
            plan = game.plan()
            assert plan and plan == (kept or plan), task
            game._ahead = []  # a plan that was followed is kept; made again from here, it is the same
            kept = plan[1:]
            outcome = game.step(plan[0])[2]
        assert outcome is Outcome.WON
    game.close()


def test_a_plan_is_made_once_and_again_when_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    game, made = BabyAIGame("babyai", "level=4"), list[int]()
    plain = game._solution
    monkeypatch.setattr(game, "_solution", lambda task, done: (made.append(len(done)), plain(task, done))[1])
    game.reset(first(4, "dev", count=1)[0])
    plan = game.plan()
    for action in plan[:3]:
        assert game.plan()[0] == action
        game.step(action)
    assert made == [0]
    game.step(next(turn for turn in ("turn left", "turn right") if turn != plan[3]))
    assert game.plan() and made == [0, 4]
    game.close()


def test_what_is_seen_is_where_it_is_said_to_be() -> None:
    """A thing "A ahead and B to the left" is reached by A steps, a turn, and B steps, up to its own cell."""
    game = BabyAIGame("babyai", "level=0")  # one red ball in an empty room
    checked = 0
    for task in first(0, count=20):
        text = game.reset(task).text
        words = text.split(".")[0].split()
        if "ball" not in words:
            continue
        ahead = int(words[words.index("ahead") - 2]) if "ahead" in words else 0
        side = next((word for word in ("left", "right") if word in words), "")
        aside = int(words[words.index("to") - 2]) if side else 0
        env = game._env
        x, y = env.agent_pos
        dx, dy = env.dir_vec
        rx, ry = env.right_vec
        turn = aside if side == "right" else -aside
        cell = env.grid.get(int(x + ahead * dx + turn * rx), int(y + ahead * dy + turn * ry))
        assert cell is not None and (cell.color, cell.type) == ("red", "ball"), text
        checked += 1
    game.close()
    assert checked >= 5


def test_actions_follow_what_stands_ahead() -> None:
    game = BabyAIGame("babyai", "level=5")  # pick something up
    for task in first(5, limit=300, count=3):
        observation = game.reset(task)
        assert observation.goal.startswith("Your task: pick up")
        assert observation.inventory == "You carry nothing."
        for action in game.gold():
            assert action in (observation.actions or ())
            assert ("way" not in observation.text) or observation.text.startswith("You see")
            observation, reward, outcome = game.step(action)
        assert (reward, outcome) == (1.0, Outcome.WON)
        assert observation.inventory != "You carry nothing."
    game.close()


def test_walls_are_told_and_walking_into_one_does_nothing() -> None:
    game = BabyAIGame("babyai", "level=0")
    observation = game.reset(first(0)[0])
    for _ in range(10):
        if "go forward" not in (observation.actions or ()):
            break
        observation = game.step("go forward")[0]
    assert "1 step ahead" in observation.text
    after, reward, _ = game.step("go forward")
    assert after.text == f"Nothing happens. {observation.text}"
    assert reward == 0.0
    assert describe(game._env) == observation.text
    game.close()


def test_wrong_levels_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 to 13"):
        games.make("babyai", "level=14")
    assert len(LEVELS) == 14


def test_the_bot_goes_on_behind_a_box_that_was_opened() -> None:
    game, draw = games.make("babyai", "level=3"), random.Random(4)
    seen = game.reset(Task("babyai", "level=3", "train", 4, 400))
    for _ in range(15):
        seen, _, outcome = game.step(draw.choice(seen.actions or ()))
    assert outcome is None
    plan = game.plan()  # type: ignore[attr-defined]
    assert plan
    assert [game.step(action)[2] for action in plan][-1] is Outcome.WON
