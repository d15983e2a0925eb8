"""TextWorldExpress through our adapter: a real Java process, all eight families."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grue import games
from grue.errors import ConfigError, GameError
from grue.games.check import check_game
from grue.games.params import canonical
from grue.games.ranges import FAMILIES
from grue.games.twx.game import TwxGame
from grue.types import Observation, Outcome, Task

CW16 = "numLocations=3,numIngredients=2,numDistractorItems=2,includeDoors=1"


def first_task(game: str, params: str = "", fold: str = "train", limit: int = 16, start: int = 0) -> Task:
    return games.tasks(game, params, fold, limit, count=1, start=start)[0]


def transcript(game: TwxGame, task: Task, actions: list[str]) -> list[Observation]:
    seen = [game.reset(task)]
    for action in actions:
        observation, _, outcome = game.step(action)
        seen.append(observation)
        if outcome is not None:
            break
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_keeps_the_contract(family: str) -> None:
    for fold in games.FOLDS:
        check_game(lambda: games.make(family), first_task(family, fold=fold, start=2))


def test_simonsays_from_memory_keeps_the_contract_and_says_nothing_more() -> None:
    params = "gameLength=3,memorization=1,verbose=0"
    task = first_task("simonsays", params)
    check_game(lambda: games.make("simonsays", params), task)
    game = TwxGame("simonsays", params)
    first = game.reset(task)
    seen = [game.step(action) for action in game.gold()]
    game.close()
    assert all(action in first.text for action in game.history)
    assert [observation.text for observation, _, _ in seen[:-1]] == ["", ""]
    assert seen[-1][2] is Outcome.WON


@pytest.mark.parametrize("family", FAMILIES)
def test_gold_wins_and_its_rewards_add_up(family: str) -> None:
    game = TwxGame(family)
    game.reset(first_task(family, limit=150, start=1))
    total, outcome = 0.0, None
    for action in game.gold():
        _, reward, outcome = game.step(action)
        total += reward
        if outcome is not None:
            break
    game.close()
    assert outcome is Outcome.WON
    assert total == pytest.approx(1.0)


def test_the_sixteenth_step_is_the_last() -> None:
    game = TwxGame("cookingworld", CW16)
    game.reset(first_task("cookingworld", CW16))
    outcomes = [game.step("look around")[2] for _ in range(16)]
    assert outcomes == [None] * 15 + [Outcome.LIMIT]
    with pytest.raises(GameError, match="over"):
        game.step("look around")
    game.close()


def test_a_wrong_answer_loses_with_score_minus_one() -> None:
    game = TwxGame("simonsays")
    observation = game.reset(first_task("simonsays"))
    assert observation.actions is not None
    wrong = next(action for action in observation.actions if action not in observation.text)
    observation, reward, outcome = game.step(wrong)
    game.close()
    assert (observation.score, reward, outcome) == (-1.0, -1.0, Outcome.LOST)


def test_gold_leaves_the_live_game_alone_and_shares_its_generation_on_demand() -> None:
    game = TwxGame("cookingworld", CW16)
    task = first_task("cookingworld", CW16, limit=50)
    plain = game.reset(task)
    beside = game.gold()
    assert game.reset(task, gold=True) == plain
    assert game.gold() == beside
    assert transcript(game, task, beside)[-1].score == 1.0
    game.reset(task)
    game.step(beside[0])
    game.gold()
    game.rehearse(["open fridge"])
    game.recipe(task)
    rest = [game.step(action)[2] for action in beside[1:]]
    game.close()
    assert rest[-1] is Outcome.WON


@pytest.mark.parametrize("family", ["twc", "coin"])
def test_gold_paths_that_the_engine_draws_without_a_seed_are_a_function_of_the_task(family: str) -> None:
    one, other = TwxGame(family), TwxGame(family)
    paths = []
    for task in games.tasks(family, "", "train", 100, count=8):
        observation = one.reset(task)
        other.reset(task, gold=True)
        assert one.gold() == other.gold()
        assert one.step("look around")[0].inventory == observation.inventory  # the live game has not moved
        paths.append(one.gold())
    one.close()
    other.close()
    assert len({tuple(path) for path in paths}) > 4


def test_sorting_games_of_one_problem_do_not_take_objects_from_each_other() -> None:
    """The engine shares the objects of problems whose seeds are equal modulo 100."""
    task, twin = first_task("sorting", start=3), first_task("sorting", start=103)
    one, other = TwxGame("sorting"), TwxGame("sorting")
    one.reset(task)
    gold = one.gold()
    alone = transcript(one, task, gold)
    mixed = [one.reset(task)]
    for action in gold:
        other.reset(twin)
        other.step("look around")
        mixed.append(one.step(action)[0])
    one.close()
    other.close()
    assert mixed == alone
    assert mixed[-1].score == 1.0


def test_many_games_share_one_java_and_stay_apart() -> None:
    tasks = games.tasks("cookingworld", CW16, "dev", 16, count=6)
    actions = ["read cookbook", "open fridge", "open cutlery drawer", "inventory"]
    lone = TwxGame("cookingworld", CW16)
    alone = [transcript(lone, task, actions) for task in tasks]
    seats = [TwxGame("cookingworld", CW16) for _ in tasks]
    together = [[seat.reset(task)] for seat, task in zip(seats, tasks, strict=True)]
    for action in actions:
        for seat, seen in zip(seats, together, strict=True):
            seen.append(seat.step(action)[0])
    for seat in (lone, *seats):
        seat.close()
    assert together == alone


@pytest.mark.parametrize("action", ["", "open\nfridge", "a\x00b", "\ud800", "x" * 5000, "öffne Kühlschrank", "a‮b"])
def test_strange_actions_cost_a_step_and_nothing_else(action: str) -> None:
    game = TwxGame("cookingworld", CW16)
    before = game.reset(first_task("cookingworld", CW16))
    after, reward, outcome = game.step(action)
    game.close()
    if action == "open\nfridge":  # one line of it is a valid action
        assert after.text.startswith("You open the fridge")
    else:
        assert "Unknown action" in after.text
        assert after.actions == before.actions
    assert (reward, outcome) == (0.0, None)


def test_an_action_that_is_no_text_is_an_error() -> None:
    game = TwxGame("coin")
    game.reset(first_task("coin"))
    with pytest.raises(GameError, match="must be a str"):
        game.step(7)  # type: ignore[arg-type]
    game.close()


def test_the_order_of_calls_is_checked() -> None:
    game = TwxGame("coin")
    with pytest.raises(GameError, match="before reset"):
        game.step("look around")
    with pytest.raises(GameError, match="needs a task"):
        game.gold()
    game.close()
    game.close()
    with pytest.raises(ConfigError, match="closed"):
        game.reset(first_task("coin"))
    with pytest.raises(GameError, match="after close"):
        game.step("look around")


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"seed": 1000}, "seeds of 'train' are 0 to 999"),
        ({"seed": 20_000}, "belongs to fold 'test'"),
        ({"seed": -1}, "0 to 999"),
        ({"seed": 2**40}, "0 to 999"),
        ({"seed": True}, "int"),
        ({"fold": "valid"}, "folds are"),
        ({"limit": 0}, "limit=16"),
        ({"params": "numLocations=99"}, "1 to 11"),
        ({"params": "numLocations=" + "9" * 5000}, "not a whole number"),
        ({"limit": 10**30}, "step count from 1 to"),
        ({"game": "chess"}, "known are"),
        ({"game": "toy", "params": ""}, "is not a TextWorldExpress game"),
    ],
)
def test_tasks_that_cannot_exist_are_refused(change: dict[str, object], hint: str) -> None:
    game = TwxGame("cookingworld", CW16)
    with pytest.raises(ConfigError, match=hint):
        game.reset(replace(first_task("cookingworld", CW16), **change))  # type: ignore[arg-type]
    game.close()


def test_an_error_text_of_the_engine_becomes_an_exception_and_the_seat_recovers() -> None:
    """twc with 0 items is refused here; asked directly, the engine's answer is not even JSON or is an ERROR text."""
    game = TwxGame("cookingworld", CW16)
    task = first_task("cookingworld", CW16)
    game.reset(task)
    text = game._seat.ask(lambda jvm, interface: jvm.interface().stepJSON("look around"))
    assert "ERROR:" in text
    with pytest.raises(GameError, match="ERROR:"):
        game._seat._parse(text)
    assert game.reset(task).text.startswith("You are in the kitchen")
    game.close()


@pytest.mark.parametrize(
    ("family", "params", "message"),
    [
        ("cookingworld", "numLocation=3", "did you mean numLocations"),
        ("cookingworld", "numLocations=abc", "not a whole number"),
        ("cookingworld", "numLocations", "key=value"),
        ("cookingworld", "numLocations=1;numIngredients=2", "not a whole number"),
        ("cookingworld", {"numLocations": 2.5}, "not a whole number"),
        ("cookingworld", "numLocations=3,numLocations=3", "twice"),
        ("cookingworld", {"includeDoors": 2}, "0 to 1"),
        ("twc", "numItemsToPutAway=0", "1 to 4"),
        ("mapreader", "numLocations=49", "2 to 48"),
        ("mapreader", "numLocations=1,maxDistanceApart=1", "2 to 48"),
        ("mapreader", "numLocations=4", "maxDistanceApart=2 at most, or numLocations=9 at least"),
        ("mapreader", "maxDistanceApart=8", "maxDistanceApart=5 at most, or numLocations=29 at least"),
        ("twc", "numLocations=1", "numItemsToPutAway=3 at most"),
        ("arithmetic", "numLocations=3", "no parameters"),
        ("cookingwrld", "", "did you mean cookingworld"),
    ],
)
def test_wrong_parameters_are_refused(family: str, params: dict[str, int] | str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        games.make(family, params)


@pytest.mark.parametrize(
    ("family", "params"),
    [
        ("mapreader", "numLocations=48,maxDistanceApart=8"),
        *(
            ("mapreader", f"numLocations={fewest},maxDistanceApart={distance}")
            for distance, fewest in ((1, 2), (2, 3), (3, 6), (4, 9), (5, 14), (6, 18), (7, 23), (8, 29))
        ),
        ("twc", "numLocations=1,numItemsToPutAway=3"),
        ("twc", "numLocations=2,numItemsToPutAway=4"),
        ("coin", "numLocations=1,numDistractorItems=10"),
        ("cookingworld", "numLocations=1,numIngredients=5,numDistractorItems=10"),
        ("simonsays", "gameLength=1,numDistractors=0"),
    ],
)
def test_parameters_at_the_edge_make_games_of_every_fold(family: str, params: str) -> None:
    game = games.make(family, params)
    for fold in ("train", "dev", "test"):
        for task in games.tasks(family, params, fold, count=30):
            assert game.reset(task).actions
    game.close()


def test_parameters_have_one_spelling() -> None:
    mixed = {"includeDoors": True, "numDistractorItems": 2, "numIngredients": 2, "numLocations": 3}
    assert canonical("cookingworld", mixed) == CW16
    assert canonical("cookingworld", " includeDoors = 1 , numLocations=3,numIngredients=2,numDistractorItems=2") == CW16
    assert canonical("cookingworld") == ""
