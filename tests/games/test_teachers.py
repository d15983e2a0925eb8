"""Teachers solve what they promise to solve, in test games that nobody tuned them on."""

from __future__ import annotations

import random
from typing import Any

import pytest

from grue import games
from grue.errors import ConfigError, GameError, TeacherError
from grue.games.play import demo_report, play
from grue.games.tasks import canonical_params
from grue.games.teachers import TEACHERS, teacher
from grue.games.teachers.adviser import Adviser, Follows
from grue.games.teachers.atlas import Atlas
from grue.games.teachers.kitchen import capacity, read_inventory
from grue.games.teachers.scripted import prune
from grue.games.twx.game import TwxGame
from grue.games.twx.renamed import RenamedTwx
from grue.types import Episode, Observation, Outcome, Task

CW16 = "numLocations=3,numIngredients=2,numDistractorItems=2,includeDoors=1"


class Careless:
    """Takes whatever comes first."""

    name = "careless"

    def start(self, task: Task, observation: Observation) -> None:
        pass

    def act(self, observation: Observation) -> str:
        return (observation.actions or ("look",))[0]


def play_many(
    name: str, count: int, record_limit: int | None = None, params: str = CW16, limit: int = 16
) -> list[Episode]:
    game = TwxGame("cookingworld", params)
    player = teacher(name, game)
    tasks = games.tasks("cookingworld", params, "test", limit, count=count, start=500)
    episodes = [play(game, task, player, record_limit=record_limit) for task in tasks]
    game.close()
    assert [episode.error for episode in episodes if episode.error] == []
    assert {episode.player for episode in episodes} == {name}
    return episodes


def test_an_action_that_is_no_text_is_a_mistake_of_the_player_and_no_crash() -> None:
    class Numbers:
        name = "numbers"

        def start(self, task: Task, observation: Observation) -> None:
            pass

        def act(self, observation: Observation) -> str:
            return 3  # type: ignore[return-value]

    game = games.make("toy")
    with pytest.raises(ConfigError, match=r"the player 'numbers' returned 3 \(int\), and an action is a str"):
        play(game, games.tasks("toy", "", "train", 9, count=1)[0], Numbers())
    game.close()


@pytest.mark.parametrize(
    ("player", "said"),
    [
        (lambda observation: "look", "is not a player: it has no name and no start and no act"),
        (Careless, "Careless is not a player: it is a class"),
        (3, "int is not a player"),
    ],
)
def test_what_is_no_player_is_one_error(player: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        play(games.make("toy"), games.tasks("toy", "", "train", 9, count=1)[0], player)


def success(episodes: list[Episode]) -> float:
    return sum(episode.won for episode in episodes) / len(episodes)


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("random", 0.0, 0.05),
        ("gold", 0.15, 0.55),
        ("gold-pruned", 0.5, 0.9),
        ("explore", 0.95, 1.0),
        ("optimal", 1.0, 1.0),
    ],
)
def test_success_within_sixteen_steps(name: str, lowest: float, highest: float) -> None:
    assert lowest <= success(play_many(name, 60)) <= highest


def test_optimal_is_never_longer_than_explore() -> None:
    pairs = zip(play_many("optimal", 40, 50), play_many("explore", 40, 50), strict=True)
    assert all(best.steps <= fair.steps for best, fair in pairs)


@pytest.mark.parametrize("params", ["", "numLocations=1,numIngredients=5", "numLocations=4,limitInventorySize=0"])
def test_both_cooks_solve_other_houses(params: str) -> None:
    for name in ("explore", "optimal"):
        assert success(play_many(name, 8, params=params, limit=80)) == 1.0


def rescued(name: str, game: TwxGame, tasks: list[Task], harmful: tuple[str, ...], wandering: int) -> int:
    """How many games the teacher wins in 60 steps and `wandering` random ones before, none of them harmful."""
    player, draw, won = teacher(name, game), random.Random(0), 0
    for task in tasks:
        observation, outcome = game.reset(task), None
        player.start(task, observation)
        for step in range(wandering + 60):
            if step >= wandering:
                action = player.act(observation)
            else:
                action = draw.choice([a for a in observation.actions or () if not a.startswith(harmful)])
                if isinstance(player, Follows):
                    player.act(observation)
                    player.follow(action)
            observation, _, outcome = game.step(action)
            if outcome is not None:
                break
        won += outcome is Outcome.WON
    game.close()
    return won


def test_optimal_goes_on_from_any_state_that_is_not_lost() -> None:
    tasks = games.tasks("cookingworld", CW16, "dev", 80, count=25)
    harmful = ("eat", "cook", "chop", "slice", "dice")
    assert rescued("optimal", TwxGame("cookingworld", CW16), tasks, harmful, 12) == 25


def test_optimal_says_when_a_game_is_lost() -> None:
    game = TwxGame("cookingworld", CW16)
    player = teacher("optimal", game)
    task = games.tasks("cookingworld", CW16, "train", 50, count=1)[0]
    observation = game.reset(task)
    player.start(task, observation)
    recipe = game.recipe(task)
    while not any(f"eat {food}" in (observation.actions or ()) for food in recipe):
        observation, _, _ = game.step(player.act(observation))
    spoiled = next(f"eat {food}" for food in recipe if f"eat {food}" in (observation.actions or ()))
    _, _, outcome = game.step(spoiled)
    game.close()
    assert outcome is Outcome.LOST


def test_gold_is_recorded_past_the_limit_and_reported() -> None:
    episodes = play_many("gold", 60, record_limit=60)
    report = demo_report(episodes)
    assert success(episodes) == 1.0
    assert report["episodes"] == 60 == report["won"] + report["won_past_limit"]
    assert report["won_past_limit"] == sum(episode.steps > 16 for episode in episodes) > 10
    assert report["steps"] == sum(episode.steps for episode in episodes)
    assert report["invalid_steps"] == sum(not turn.valid for e in episodes for turn in e.turns) > 0
    assert {episode.task.limit for episode in episodes} == {16}


def test_pruned_gold_still_wins_with_fewer_steps_all_of_them_valid() -> None:
    full, pruned = play_many("gold", 60, 60), play_many("gold-pruned", 60, 60)
    assert success(pruned) == 1.0
    assert all(short.steps < long.steps for short, long in zip(pruned, full, strict=True))
    assert demo_report(pruned)["invalid_steps"] == 0
    game = TwxGame("cookingworld", CW16)
    player = teacher("gold-pruned", game)
    for episode in full:
        play(game, episode.task, player, record_limit=60)
    game.close()
    assert player.pruned_steps == sum(e.steps for e in full) - sum(e.steps for e in pruned)  # type: ignore[attr-defined]


def test_pruning_keeps_a_path_that_needs_its_idle_steps() -> None:
    class Ritual:
        """Won by looking around, which pruning would drop."""

        def gold(self) -> list[str]:
            return ["look around"]

        def rehearse(self, actions: list[str]) -> list[tuple[bool, bool]]:
            return [(True, action == "look around") for action in actions]

    assert prune(Ritual(), ["look around"]) == ["look around"]


@pytest.mark.parametrize(
    ("name", "params", "limit"),
    [
        ("coin", "numLocations=5,numDistractorItems=0,includeDoors=1", 25),
        ("coin", "numLocations=8,numDistractorItems=3,includeDoors=0", 25),
        ("mapreader", "numLocations=8,maxDistanceApart=3,maxDistractorItemsPerLocation=1", 16),
        ("mapreader", "numLocations=6,maxDistanceApart=3,includeDoors=1", 30),
    ],
)
def test_explore_finds_what_the_task_names(name: str, params: str, limit: int) -> None:
    """In fewer steps than the engine's solution, which walks at random (coin) or begins with three idle steps."""
    game = TwxGame(name, params)
    tasks = games.tasks(name, params, "test", limit, count=25)
    fair, gold = ([play(game, task, teacher(who, game)) for task in tasks] for who in ("explore", "gold"))
    game.close()
    assert success(fair) >= 0.96
    assert sum(episode.steps for episode in fair) < sum(episode.steps for episode in gold)
    assert not any("read map" in [turn.action for turn in episode.turns] for episode in fair)


def test_explore_finds_the_coin_after_another_has_walked() -> None:
    params = "numLocations=8,maxDistanceApart=3"
    game, tasks = TwxGame("mapreader", params), games.tasks("mapreader", params, "dev", 60, count=10)
    assert isinstance(teacher("explore", game), Follows)
    assert rescued("explore", game, tasks, ("put map in box",), 8) == 10


@pytest.mark.parametrize(
    ("name", "params", "wandering"), [("cookingworld", CW16, 40), ("coin", "numLocations=2", 12)], ids=["cook", "coin"]
)
def test_explore_goes_on_where_another_has_shut_doors_or_filled_the_hands(
    name: str, params: str, wandering: int
) -> None:
    """Or taken the cookbook somewhere else. What the other player must not do is end the game."""
    ends = ("eat", "cook", "chop", "slice", "dice", "put coin in box")
    game, tasks = TwxGame(name, params), games.tasks(name, params, "test", 200, count=12)
    assert rescued("explore", game, tasks, ends, wandering) == 12


def test_explore_believes_in_no_door_that_a_free_writer_has_made_up() -> None:
    """Refused actions change nothing, whatever they name."""
    game, task = games.make("coin", "numLocations=5"), games.tasks("coin", "numLocations=5", "test", 80, count=1)[0]
    adviser, observation = Adviser(teacher("explore", game)), game.reset(task)
    adviser.start(task, observation)
    outcome = None
    for direction in ("north", "east", "south", "west", "up"):
        adviser.advice(observation)
        observation, _, _ = game.step(f"close door to {direction}")
        adviser.saw(f"close door to {direction}")
    while outcome is None:
        advised = adviser.advice(observation)
        assert advised
        observation, _, outcome = game.step(advised)
        adviser.saw(advised)
    game.close()
    assert outcome is Outcome.WON


def test_explore_says_when_full_hands_cannot_be_emptied() -> None:
    """In coin things can be put into containers, and this house has none that would take a chopping board."""
    params = "numLocations=11,numDistractorItems=10,includeDoors=0"
    game, task = games.make("coin", params), Task("coin", canonical_params("coin", params), "train", 200, 80)
    adviser, observation = Adviser(teacher("explore", game)), game.reset(task)
    adviser.start(task, observation)
    unwise = ["take chopping board", "move south", "take spice container"]
    for _ in range(60):
        advised = adviser.advice(observation)
        action = unwise.pop(0) if unwise else advised
        if not action:
            break
        observation, _, _ = game.step(action)
        adviser.saw(action)
    game.close()
    assert "cannot be won any more: the hands are full" in adviser.trouble


@pytest.mark.parametrize("name", ["explore", "optimal"])
def test_cooks_refuse_other_games(name: str) -> None:
    game = TwxGame("twc")
    with pytest.raises(TeacherError, match="not twc"):
        play(game, games.tasks("twc", "", "train", 16, count=1)[0], teacher(name, game))
    game.close()


def test_teacher_names_are_checked() -> None:
    toy = games.make("toy")
    with pytest.raises(ConfigError, match="did you mean optimal"):
        teacher("optimum", toy)
    # a game seen through a wrapper shows no more than the contract asks for
    with pytest.raises(GameError, match=r"'optimal' needs a game with a method plan\(\)"):
        teacher("optimal", RenamedTwx(TwxGame("coin"), "salt"))
    assert [teacher(name, games.make("cookingworld")).name for name in TEACHERS] == list(TEACHERS)


def test_random_plays_the_same_whatever_was_played_before() -> None:
    game = games.make("toy")
    first, second = games.tasks("toy", "", "train", 16, count=2)
    player = teacher("random", game, seed=5)
    alone = play(game, second, player)
    play(game, first, player)
    assert play(game, second, player) == alone
    assert play(game, second, teacher("random", game, seed=6)) != alone


def test_reading_an_inventory() -> None:
    text = "Inventory (maximum capacity is 4 items):\n  a knife\n  a raw diced red onion\n  some water\n  an egg"
    held = read_inventory(text)
    assert list(held) == ["knife", "red onion", "water", "egg"]
    assert held["red onion"] == {"raw", "diced"}
    assert capacity(text) == 4
    assert read_inventory("Inventory (maximum capacity is 4 items):\n  Your inventory is currently empty.") == {}
    assert capacity("Inventory:\n  a map") > 100


def test_the_atlas_remembers_ways_and_finds_them() -> None:
    exits = "To the North you see a closed plain door. To the East you see the hall."
    kitchen = f"You are in the kitchen. There is an oven.\n{exits}"
    atlas = Atlas()
    atlas.update("", Observation(kitchen, "", "", ("open fridge", "open door to north", "take knife"), 0.0))
    assert atlas.closed["kitchen"] == {"fridge"}
    assert atlas.seen == {"knife": "kitchen"}
    assert [(steps, way) for steps, _, way, _ in atlas.unknown_exits()] == [(1, "east"), (2, "north")]
    opened = Observation("You open the plain door, revealing the pantry.", "", "", (), 0.0)
    atlas.update("open door to north", opened)
    assert atlas.distances() == {"kitchen": 0, "pantry": 1, "hall": 1}
    assert atlas.towards("pantry") == "north"
