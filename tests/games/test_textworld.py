"""Microsoft TextWorld for real: games are generated here, played in processes of their own, and solved."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("textworld", reason="pip install -e '.[textworld]'")

from grue import games
from grue.cli.check import check
from grue.config import load_config
from grue.errors import ConfigError, GameError
from grue.games.check import check_game
from grue.games.known import is_one_game
from grue.games.play import play
from grue.games.renaming import with_names
from grue.games.teachers import teacher
from grue.games.textworld import make
from grue.games.textworld.folder import _stories_of, fingerprints, story_file, story_files
from grue.games.textworld.foods import RenamedFoods, could_be_drawn
from grue.games.textworld.game import tidy
from grue.games.textworld.make import cache_folder, coin_map, game_file, walkthrough
from grue.games.training import renamer, training_games
from grue.games.twx.food_names import rename
from grue.games.twx.recipes import recipe_in
from grue.games.worker.game import WorkerPlanGame
from grue.games.worker.process import shutdown
from grue.progress import Progress
from grue.stages import run_stage
from grue.storage.run import Run
from grue.types import Episode, Observation, Outcome, Task

COIN = "level=3"
COOKING = "recipe=1,take=1,open=1,cook=1"


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of this module's own, and a seat that keeps the process with the engine warm from test to test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRUE_CACHE", str(tmp_path_factory.mktemp("cache")))
        warm = opened("textworld-coin", COIN)
        warm.reset(first("textworld-coin", COIN))
        yield
    warm.close()
    shutdown()


def first(game: str, params: str, fold: str = "train", limit: int = 40) -> Task:
    return games.tasks(game, params, fold, limit, count=1)[0]


def opened(game: str, params: str) -> WorkerPlanGame:
    made = games.make(game, params, read_timeout_s=100.0)  # generating a game takes seconds, on a busy machine minutes
    assert isinstance(made, WorkerPlanGame)
    return made


@pytest.mark.parametrize(("name", "params"), [("textworld-coin", COIN), ("textworld-cooking", COOKING)])
def test_generated_games_keep_the_contract_and_can_be_won(name: str, params: str) -> None:
    task = first(name, params)
    check_game(lambda: opened(name, params), task)
    game = opened(name, params)
    for who in ("gold", "gold-pruned", "optimal"):
        episode = play(game, task, teacher(who, game))
        assert (episode.outcome, episode.score) == (Outcome.WON, 1.0), who
        assert sum(turn.reward for turn in episode.turns) == pytest.approx(1.0)
        assert all(turn.valid for turn in episode.turns)
    game.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("textworld", "rooms=4,objects=8,questLength=4"),
        ("textworld-treasure", "level=12"),
        ("textworld-cooking", "recipe=2,take=2,go=6,open=1,cook=1,cut=1,drop=1"),
    ],
)
def test_other_families_can_be_won(name: str, params: str) -> None:
    game = opened(name, params)
    for task in games.tasks(name, params, "dev", 100, count=3):
        assert play(game, task, teacher("gold", game)).won
    game.close()


def test_a_game_that_does_not_understand_its_own_words_is_made_anew() -> None:
    """In the first that the generator draws here, a key lies in the "locker" beside a "type 0 locker"."""
    task = first("textworld", "")
    assert task.seed == 0
    with closing(opened("textworld", "")) as game:
        assert play(game, task, teacher("gold", game)).won


def test_the_expert_finds_the_way_from_any_state() -> None:
    task, draw = first("textworld-coin", COIN, limit=60), random.Random(3)
    game = opened("textworld-coin", COIN)
    observation = game.reset(task)
    for _ in range(8):
        safe = [action for action in observation.actions or () if not action.startswith("take")]
        observation = game.step(draw.choice(safe))[0]
    plan = game.plan()
    assert plan != game.gold() or len(plan) == 3
    ends = [game.step(action)[2] for action in plan]
    game.close()
    assert ends == [None] * (len(plan) - 1) + [Outcome.WON]


def test_texts_hold_no_banner_status_line_or_prompt() -> None:
    game = opened("textworld-cooking", COOKING)
    seen = [game.reset(first("textworld-cooking", COOKING))]
    seen += [game.step(action)[0] for action in ("examine cookbook", "inventory", "look", "open fridge", "fly away")]
    game.close()
    for observation in seen:
        for text in (observation.text, observation.inventory, observation.goal):
            assert "$$$" not in text and "____" not in text
            assert not re.search(r"-= .* =-\s*\d+/\d+", text)
            assert not re.search(r"^>|\n>", text)
            assert text == text.strip() != ""
    assert seen[0].text.startswith("-= Kitchen =-")
    assert "cook" in seen[0].goal
    assert "Ingredients" in seen[1].text
    assert seen[2].text == seen[2].inventory


def test_screens_are_tidied() -> None:
    screen = "You open the door.\n\n\n\nIt squeaks.   \n\n> -= Hall =-                      1/3\n>"
    assert tidy(screen) == "You open the door.\n\nIt squeaks."
    assert tidy("-= Hall =-\nA hall.\n") == "-= Hall =-\nA hall."  # the title of a room is not a status line


@pytest.mark.parametrize(
    "action",
    ["quit", "QUIT", "q", "restart", "save", "restore", "undo", "", "inventory then quit", "look. quit", "look, quit"],
)
def test_commands_that_are_no_moves_cost_a_step_and_do_nothing(action: str) -> None:
    game = opened("textworld-coin", COIN)
    before = game.reset(first("textworld-coin", COIN))
    after, reward, outcome = game.step(action)
    assert (after.actions, after.score, reward, outcome) == (before.actions, 0.0, 0.0, None)
    assert "move" in after.text
    assert game.step("look")[0].text == before.text  # nobody waits for "yes" or "no"
    game.close()


def test_a_wrong_step_in_cooking_loses() -> None:
    """The recipe says how the food is cooked; any other way spoils it."""
    game = opened("textworld-cooking", COOKING)
    observation = game.reset(first("textworld-cooking", COOKING))
    for right in game.gold():
        others = [action for action in observation.actions or () if action.startswith("cook ") and action != right]
        if right.startswith("cook ") and others:
            break
        observation = game.step(right)[0]
    after, reward, outcome = game.step(others[0])
    game.close()
    assert (after.score, reward, outcome) == (observation.score, 0.0, Outcome.LOST)


@pytest.mark.parametrize("drop", [0, 1])
def test_teachers_read_the_cookbook_before_they_cook(drop: int) -> None:
    """With drop=1 the engine's expert has no solution, and the generator's walkthrough opens doors that are open."""
    params = f"recipe=2,take=2,go=9,open=1,cook=1,cut=1,drop={drop}"
    task = first("textworld-cooking", params, limit=100)
    with closing(opened("textworld-cooking", params)) as game:
        for who in ("gold",) if drop else ("gold", "optimal"):
            episode = play(game, task, teacher(who, game))
            actions = [turn.action for turn in episode.turns]
            way = actions[: actions.index("examine cookbook")]
            assert way and all(action.startswith(("go ", "open ")) for action in way), (who, actions)
            assert actions.count("examine cookbook") == 1
            assert episode.won and all(turn.valid for turn in episode.turns), (who, actions)


def test_the_cookbook_is_found_from_wherever_play_has_led() -> None:
    """Also where it is in the player's hands, or lies in another room."""
    params = "recipe=2,take=2,go=6,open=1"
    task = first("textworld-cooking", params, limit=100)
    with closing(opened("textworld-cooking", params)) as game:
        observation = game.reset(task)
        solution = game.gold()
        for action in solution[: solution.index("examine cookbook")]:
            observation = game.step(action)[0]
        assert "examine cookbook" in (observation.actions or ())
        take = next(action for action in observation.actions or () if action.startswith("take cookbook"))
        observation = game.step(take)[0]
        assert "examine cookbook" not in (observation.actions or ())  # one cannot read what one holds
        assert game.plan()[:2] == ["drop cookbook", "examine cookbook"]
        leave = next(action for action in observation.actions or () if action.startswith("go "))
        game.step(leave)
        assert game.plan()[:2] == ["drop cookbook", "examine cookbook"]
        game.step("drop cookbook")
        back = {"north": "south", "south": "north", "east": "west", "west": "east"}[leave.removeprefix("go ")]
        game.step(f"go {back}")
        observation = game.step("examine cookbook")[0]  # it is not here
        way = game.plan()
        assert way[:2] == [leave, "examine cookbook"]
        for done, action in enumerate(way, 1):
            assert action in (observation.actions or ())
            observation, _, outcome = game.step(action)
            assert outcome is (Outcome.WON if done == len(way) else None)
            assert outcome is not None or game.plan() == way[done:]


def test_a_cookbook_that_was_shut_away_is_not_looked_for() -> None:
    """The teacher knows the recipe, and would have to guess where a player has put the book."""
    task = first("textworld-cooking", COOKING, limit=100)
    with closing(opened("textworld-cooking", COOKING)) as game:
        observation = game.reset(task)
        take = next(action for action in observation.actions or () if action.startswith("take cookbook"))
        for action in ("open fridge", take, "insert cookbook into fridge"):
            observation = game.step(action)[0]
        assert game.plan()[0] == "examine cookbook"  # an open fridge does not hide it
        game.step("close fridge")
        way = game.plan()
        assert "examine cookbook" not in way
        assert [game.step(action)[2] for action in way][-1] is Outcome.WON


@pytest.mark.filterwarnings("ignore")  # from the generator, about its own interpreter
@pytest.mark.parametrize(("name", "params"), [("textworld-cooking", COOKING), ("textworld-treasure", "level=2")])
def test_games_are_those_of_the_generator_alone(name: str, params: str, tmp_path: Path) -> None:
    """Rules that are parsed once for all games of a process make the same games, and are not changed by making one."""
    from textworld.generator import compile_game

    for task in games.tasks(name, params, "train", 40, count=2):
        story = make._generate(task, tmp_path)
        options = make._options(task.seed)
        options.path = str(tmp_path / f"alone{task.seed}.z8")
        alone = Path(compile_game(make._make(task, options), options))
        assert alone.with_suffix(".json").read_bytes() == story.with_suffix(".json").read_bytes()
        assert alone.read_bytes() == story.read_bytes()


class Reads:
    """Plays from a list."""

    name = "reads"

    def __init__(self, actions: Sequence[str]) -> None:
        self._actions = iter(actions)

    def start(self, task: Task, observation: Observation) -> None:
        """Nothing to prepare."""

    def act(self, observation: Observation) -> str:
        return next(self._actions)


def test_foods_exchange_their_names_in_training() -> None:
    """In a game that is played as in one that was recorded; nothing else changes."""
    task = first("textworld-cooking", COOKING)
    with closing(opened("textworld-cooking", COOKING)) as game:
        plain = play(game, task, teacher("gold", game))
        (renamed,) = training_games([game], 1.0, "salt")
        renamed.reset(task)
        assert isinstance(renamed, RenamedFoods)
        names = renamed.names
        played = play(renamed, task, Reads([rename(turn.action, names.there) for turn in plain.turns]))
    renamer_of = renamer("textworld-cooking", COOKING)
    assert renamer_of is not None
    drawn = [renamer_of(plain, random.Random(number)) for number in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    for other in (played, *drawn):
        assert other.won and recipe(other) != recipe(plain)
        assert [turn.reward for turn in other.turns] == [turn.reward for turn in plain.turns]
    assert [turn.observation for turn in played.turns] == [turn.observation for turn in with_names(plain, names).turns]
    unread = replace(plain, turns=tuple(turn for turn in plain.turns if "Directions:" not in turn.observation.text))
    assert renamer_of(unread, random.Random(0)) == unread


class Wrapped:
    """A game of one's own around another, which renames things in its own way."""

    def __init__(self, inner: WorkerPlanGame) -> None:
        self.inner = inner

    @staticmethod
    def renaming(first: Observation, rng: random.Random) -> dict[str, str]:
        return {"kitchen": "wib"}

    def reset(self, task: Task) -> Observation:
        return self.inner.reset(task)

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        return self.inner.step(action)

    def close(self) -> None:
        self.inner.close()


def test_a_renaming_of_ones_own_comes_first() -> None:
    with closing(Wrapped(opened("textworld-cooking", COOKING))) as game:
        (renamed,) = training_games([game], 1.0, "salt")
        assert renamed.reset(first("textworld-cooking", COOKING)).text.startswith("-= Wib =-")


def recipe(episode: Episode) -> frozenset[tuple[str, str, str]]:
    return next(found for turn in episode.turns if (found := recipe_in(turn.observation.text)))


def test_no_recipe_of_a_later_fold_is_made_by_exchanging_names() -> None:
    """Whatever the generator may draw for these folds: preparations of its lists, and foods of their own."""
    from textworld.challenges.tw_cooking import cooking

    for fold, split in {"dev": "valid", "test": "test"}.items():
        lists = cooking.FOOD_PREPARATIONS_SPLITS[split] | cooking.get_food_preparations(cooking.FOODS_SPLITS[split])
        ways = {(food, *way) for food, found in lists.items() for way in found}
        for food in cooking.FOODS:
            for way in product(cooking.TYPES_OF_COOKING, cooking.TYPES_OF_CUTTING):
                if (food, *way) in ways:
                    assert could_be_drawn(frozenset({(food, *way)}), fold)
    params = "recipe=1,take=1,cook=1,cut=1"
    task = first("textworld-cooking", params)
    with closing(opened("textworld-cooking", params)) as game:
        episode, renamer_of = play(game, task, teacher("gold", game)), renamer("textworld-cooking", params)
    assert renamer_of is not None
    made = {recipe(renamer_of(episode, random.Random(number))) for number in range(60)}
    assert len(made) > 5
    assert not [one for one in made - {recipe(episode)} if could_be_drawn(one, "dev") or could_be_drawn(one, "test")]


def test_folds_differ_in_seed_and_in_what_may_be_cooked() -> None:
    lists = {}
    for fold in ("train", "dev", "test"):
        task = first("textworld-cooking", COOKING, fold)
        story = game_file(task)
        assert str(task.seed) == story.stem
        made = json.loads(story.with_suffix(".json").read_text())
        lists[fold] = made["metadata"]["settings"]["split"]
    assert lists == {"train": "train", "dev": "valid", "test": "test"}


def titles(task: Task) -> list[tuple[str, tuple[str, ...] | None]]:
    """(the room that one is in, what one can do there) along the engine's solution of a coin collector."""
    with closing(opened(task.game, task.params)) as game:
        seen = [game.reset(task), *(game.step(action)[0] for action in game.gold()[:-1])]
    return [(observation.text.partition("\n")[0].strip("-= ").lower(), observation.actions) for observation in seen]


def test_the_map_of_a_coin_collector_is_that_of_the_game_that_is_played() -> None:
    task = first("textworld-coin", COIN)
    seen = [room for room, _ in titles(task)]
    drawn = coin_map(task)
    assert {"at", "P", seen[0]} in map(set, drawn) and {"at", "coin", seen[-1]} in map(set, drawn)
    assert {name for fact in drawn if fact[0] == "free" for name in fact[1:]} == set(seen)
    assert len(set(seen)) == 3


@pytest.mark.slow
def test_no_fold_of_a_small_coin_collector_repeats_a_map_of_a_later_one() -> None:
    params = "level=2"
    later = {coin_map(task): task for fold in ("dev", "test") for task in games.tasks("textworld-coin", params, fold)}
    kept = games.tasks("textworld-coin", params, "train")
    assert 600 < len(kept) < 700
    assert not [task for task in kept if coin_map(task) in later]
    left = min(set(games.FOLDS["train"]) - {task.seed for task in kept})
    one = Task("textworld-coin", params, "train", left, 20)
    assert titles(one) == titles(replace(later[coin_map(one)], limit=20))
    with pytest.raises(ConfigError, match="every game of dev is also one of test"):
        games.tasks("textworld-coin", "level=1", "dev")


def test_a_game_is_generated_once() -> None:
    task = first("textworld-coin", COIN)
    story = game_file(task)
    assert story.is_relative_to(cache_folder())
    changed = story.stat().st_mtime_ns
    assert game_file(task) == story
    assert story.stat().st_mtime_ns == changed
    assert not list(story.parent.glob(".making-*"))


def test_equal_seeds_make_equal_games_in_another_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = first("textworld-coin", COIN)
    here = game_file(task)
    monkeypatch.setenv("GRUE_CACHE", str(tmp_path))
    there = game_file(task)
    assert there != here
    made = [json.loads(story.with_suffix(".json").read_text()) for story in (here, there)]
    for game in made:
        game["grammar"]["names_to_exclude"].sort(key=str)  # a set, written in any order
    assert made[0] == made[1]


def test_demonstrations_are_the_same_whether_recorded_at_once_or_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["game.name=textworld-coin", f"game.params={COIN}", "demos.games=4", "demos.replays=1"]
    config = load_config(None, asked)
    for cores in (1, 3):
        monkeypatch.setattr("grue.games.native.physical_cores", lambda cores=cores: cores)
        run_stage("demos", config, tmp_path / str(cores), say=Progress(quiet=True))
    kept = [tmp_path / str(cores) / "episodes" for cores in (1, 3)]
    for name in ("demos.jsonl", "replays.jsonl"):
        one_by_one, at_once = ((folder / name).read_bytes() for folder in kept)
        assert one_by_one.count(b"\n") == 4 and at_once == one_by_one


def test_plans_along_an_episode_are_those_of_a_game_that_is_asked_once() -> None:
    """What works them out goes on from plan to plan, also where the player does something else."""
    params = "recipe=1,take=1,cook=1"
    task, draw = first("textworld-cooking", params), random.Random(0)
    with closing(opened("textworld-cooking", params)) as game, closing(opened("textworld-cooking", params)) as other:
        seen, outcome = game.reset(task), None
        for number in range(8):
            plan = game.plan()
            assert game.plan() == plan
            other.reset(task)
            for action in game.history:
                other.step(action)
            assert other.plan() == plan
            listed = [action for action in seen.actions or () if not action.startswith("eat")]
            seen, _, outcome = game.step(plan[0] if plan and number % 3 else draw.choice(listed))
            if outcome is not None:
                break
        assert number > 3


def test_a_plan_is_one_for_the_game_that_has_begun_last() -> None:
    tasks, plans = games.tasks("textworld-coin", COIN, "train", 40, count=3), set()
    with closing(opened("textworld-coin", COIN)) as game:
        for task in (*tasks, *tasks):
            game.reset(task)
            plan = game.plan()
            assert plan == game.gold()
            plans.add(tuple(plan))
    assert len(plans) > 1


def test_a_killed_process_does_not_show_in_the_transcript() -> None:
    task = first("textworld-coin", COIN)

    def transcript(*, strike: bool) -> list[Observation]:
        game = opened("textworld-coin", COIN)
        seen = [game.reset(task)]
        for number, action in enumerate(game.gold()):
            if strike and number == 1:
                assert game.pid is not None
                os.kill(game.pid, signal.SIGKILL)
            seen.append(game.step(action)[0])
        game.close()
        return seen

    assert transcript(strike=True) == transcript(strike=False)


def test_a_game_file_of_ones_own(tmp_path: Path) -> None:
    story = game_file(first("textworld-coin", COIN))
    name = f"textworld:{story}"
    game = opened(name, "")
    episode = play(game, first(name, "", limit=20), teacher("gold", game))
    game.close()
    assert episode.won
    alone = tmp_path / "alone.z8"
    alone.write_bytes(story.read_bytes())
    with pytest.raises(GameError, match="jericho:"):
        games.make(f"textworld:{alone}").reset(first(f"textworld:{alone}", ""))
    alone.with_suffix(".json").write_text("{")
    with pytest.raises(GameError, match=r"alone\.json is damaged"):
        games.make(f"textworld:{alone}")
    alone.write_bytes(story.read_bytes()[:5000])
    with pytest.raises(ConfigError, match="cut short"):
        games.make(f"textworld:{alone}")
    alone.rename(tmp_path / "old.ulx")
    with pytest.raises(ConfigError, match=r"\.z8"):
        games.make(f"textworld:{tmp_path / 'old.ulx'}").reset(first(f"textworld:{tmp_path / 'old.ulx'}", ""))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one's own: three games to train on, two for dev (one of which is also in train) and one for test."""
    made = tmp_path_factory.mktemp("games")
    stories = [game_file(task) for task in games.tasks("textworld-coin", COIN, "train", count=5)]
    for part, chosen in {"train": [0, 1, 2], "valid": [3, 2], "test/deeper": [4]}.items():
        (made / part).mkdir(parents=True)
        for number in chosen:
            for suffix in (".z8", ".json"):
                shutil.copy(stories[number].with_suffix(suffix), made / part / f"{part[0]}{number}{suffix}")
    again = made / "valid" / "v2.json"  # made anew on another day, a game is written down in another order
    about = json.loads(again.read_bytes())
    again.write_text(json.dumps(about | {"world": about["world"][::-1]}))
    return made


def test_a_folder_of_games_has_a_part_for_each_fold(folder: Path, tmp_path: Path) -> None:
    name = f"textworld:{folder}"
    assert not is_one_game(name)
    played = {fold: games.tasks(name, "", fold, limit=20) for fold in ("train", "dev", "test")}
    stories = {fold: [story_file(task).stem for task in tasks] for fold, tasks in played.items()}
    assert sorted(stories["train"]) == ["t0", "t1"]  # t2 is also a game of dev
    assert (sorted(stories["dev"]), stories["test"]) == (["v2", "v3"], ["t4"])
    with closing(opened(name, "")) as game:
        for task in (played["train"][0], played["test"][0]):
            assert play(game, task, teacher("gold", game)).won
        with pytest.raises(ConfigError, match=r"seed 20001: the folder has 1 games for 'test'"):
            game.reset(replace(played["test"][0], seed=20001))


def test_a_folder_of_few_games_can_be_checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = check(f"textworld:{folder}", [], 4, Progress())
    told = "".join(capsys.readouterr())
    for kept in ("3 train games keep", "2 dev games keep", "1 test games keep"):
        assert kept in told
    assert found["games"] == {"train": 3, "dev": 2, "test": 1}


def test_the_order_of_a_folder_is_mixed_and_does_not_depend_on_its_place(folder: Path, tmp_path: Path) -> None:
    """Links to folders are followed; hidden files, and stories without their .json, are no games."""
    story = next((folder / "train").glob("*.z8"))
    orders = []
    for place in ("here", "a/there"):
        part = tmp_path / place / "train"
        stored = tmp_path / f"stored {place.replace('/', ' ')}"
        for made in (part, stored):
            made.mkdir(parents=True)
        for name in (*(f"easy{number}" for number in range(8)), *(f"hard{number}" for number in range(8)), ".hidden"):
            for suffix in (".z8", ".json"):
                shutil.copy(story.with_suffix(suffix), (part if "easy" in name else stored) / f"{name}{suffix}")
        shutil.copy(story, part / "alone.z8")
        (part / "linked").symlink_to(stored)
        (stored / "back").symlink_to(part)
        orders.append([file.stem for file in story_files(f"textworld:{tmp_path / place}", "train")])
    assert orders[0] == orders[1] != sorted(orders[0])
    assert sorted(orders[0]) == [f"{kind}{number}" for kind in ("easy", "hard") for number in range(8)]
    assert 2 <= sum(name.startswith("easy") for name in orders[0][:8]) <= 6


def test_a_damaged_story_of_a_folder_fails_its_game_alone(folder: Path, tmp_path: Path) -> None:
    hurt = shutil.copytree(folder, tmp_path / "hurt")
    name = f"textworld:{hurt}"
    first_story, second = (story_file(task) for task in games.tasks(name, "", "train", limit=20))
    first_story.write_bytes(first_story.read_bytes()[:5000])
    with closing(opened(name, "")) as game:
        broken, whole = (play(game, task, teacher("gold", game)) for task in games.tasks(name, "", "train", limit=20))
    assert broken.failed and str(first_story) in broken.error and "cut short" in broken.error
    assert whole.won and second.is_file()


def test_a_run_refuses_a_folder_that_has_changed(folder: Path, tmp_path: Path) -> None:
    """A seed is a place among the files: with another file it would be another game."""
    mine = shutil.copytree(folder, tmp_path / "mine")
    settings = [f"game.name=textworld:{mine}", "game.limit=20", "demos.games=2", "threads=1"]
    out = tmp_path / "run"

    def demos(again: bool = False) -> None:
        run_stage("demos", load_config("toy", settings), out, say=Progress(quiet=True), again=again)

    demos()
    assert [*json.loads((out / "games.json").read_text())] == ["train", "dev", "test"]
    for suffix in (".z8", ".json"):
        shutil.copy((mine / "test/deeper/t4").with_suffix(suffix), mine / "train" / f"new{suffix}")
    _stories_of.cache_clear()  # as in another process
    now = fingerprints(f"textworld:{mine}")
    with pytest.raises(ConfigError, match=r"the train games are not those that .*run began with"):
        Run(out, load_config("toy", settings), leads=False).keep_games(now)
    demos(again=True)
    Run(out, load_config("toy", settings), leads=False).keep_games(now)


@pytest.mark.parametrize("change", ["another in its place", "folders renamed", "one less"])
def test_a_change_of_a_folder_is_seen(change: str, folder: Path, tmp_path: Path) -> None:
    """Stories of one family are often of the same size; seeds go by the path inside the part."""
    mine = shutil.copytree(folder, tmp_path / "mine")
    part, before = mine / "train", fingerprints(f"textworld:{mine}")
    if change == "another in its place":
        for suffix in (".z8", ".json"):
            shutil.copy((mine / "test/deeper/t4").with_suffix(suffix), (part / "t0").with_suffix(suffix))
    elif change == "folders renamed":
        (part / "deeper").mkdir()
        for suffix in (".z8", ".json"):
            (part / "t0").with_suffix(suffix).rename((part / "deeper/t0").with_suffix(suffix))
    else:
        (part / "t0.json").unlink()
    _stories_of.cache_clear()
    after = fingerprints(f"textworld:{mine}")
    assert {fold for fold in before if before[fold] != after[fold]} == {"train"}


def test_what_a_folder_of_games_lacks_is_named(folder: Path, tmp_path: Path) -> None:
    for wrong, message in {
        f"textworld:{folder}/nowhere": "there is no folder",
        f"textworld:{folder}/train": "has no games for 'train': there is no folder train",
    }.items():
        with pytest.raises(ConfigError, match=message):
            games.make(wrong)
    lacks = shutil.copytree(folder, tmp_path / "lacks")
    shutil.rmtree(lacks / "test")
    with pytest.raises(ConfigError, match="no games for 'test': there is no folder test"):
        games.tasks(f"textworld:{lacks}", "", "test")
    for about in (lacks / "valid").glob("*.json"):
        about.unlink()
    with pytest.raises(ConfigError, match=r"no \.z8 file with its \.json beside it in .*valid") as caught:
        games.tasks(f"textworld:{lacks}", "", "dev")
    assert ".ulx" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("textworld", "room=3", "unknown parameter 'room'"),
        ("textworld", "rooms=0", "1 to 50"),
        ("textworld-cooking", "recipe=1,take=2", "more than recipe"),
        ("textworld-cooking", "go=5", "1, 6, 9 or 12"),
        ("textworld-coin", "level=180", "160 rooms"),
        ("textworld:nothing.z8", "", "no file"),
        ("textworld:nothing", "", "no folder"),
        ("textworld:~not-a-user/nothing", "", "no folder '~not-a-user/nothing'"),
        ("jericho:~not-a-user/nothing.z5", "", "no file '~not-a-user/nothing.z5'"),
        ("textworld:nothing.z8", "rooms=3", "no parameters"),
        ("textworld-coin:nothing.z8", "", "takes no file"),
        ("textworld:", "", "names no file"),
    ],
)
def test_wrong_requests_are_refused(name: str, params: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        games.make(name, params)


def test_parameters_that_no_game_fits_fail_the_game() -> None:
    params = "rooms=1,objects=3,questLength=1,questBreadth=5"
    game = opened("textworld", params)
    with pytest.raises(GameError, match="made no textworld"):
        game.reset(first("textworld", params))
    game.close()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grue.errors.find_spec", lambda module: None)
    for name, extra in [("textworld", "textworld"), ("jericho:x.z3", "jericho"), ("scienceworld", "scienceworld")]:
        with pytest.raises(ConfigError, match=re.escape(f"-e '.[{extra}]'")):
            games.make(name)
    with pytest.raises(ConfigError, match=re.escape("-e '.[babyai]'")):
        games.make("babyai")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRUE_CACHE", str(tmp_path / "file"))
    with pytest.raises(GameError, match=r"games cannot be kept in .*file[^\0]*set GRUE_CACHE"):
        game_file(games.tasks("textworld-coin", {"level": 6}, "dev", 10, count=1)[0])


def test_a_story_that_was_cut_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRUE_CACHE", str(tmp_path))
    task = games.tasks("textworld-coin", {"level": 6}, "dev", 10, count=1)[0]
    story = game_file(task)
    whole = story.read_bytes()
    for part in (whole[:1000], b""):
        story.write_bytes(part)
        assert game_file(task).read_bytes()[:28] == whole[:28] and story.stat().st_size == len(whole)
    about = story.with_suffix(".json")
    about.write_bytes(about.read_bytes()[:100])
    assert walkthrough(game_file(task))


def test_a_full_disk_is_no_fault_of_the_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("GRUE_CACHE", str(tmp_path))
    monkeypatch.setattr("textworld.generator.compile_game", full)
    with pytest.raises(GameError, match=r"No space left on device\nhint: set GRUE_CACHE"):
        game_file(games.tasks("textworld-coin", {"level": 6}, "dev", 10, count=1)[0])
