"""Z-machine files for real: a small adventure that is compiled here, and a game that TextWorld made."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("jericho", reason="pip install -e '.[jericho]'")
pytest.importorskip("textworld", reason="its compiler builds the stories: pip install -e '.[textworld]'")

import textworld

from grue import games
from grue.errors import ConfigError, GameError, TeacherError
from grue.games.check import check_game
from grue.games.jericho import game as jericho
from grue.games.jericho.game import JerichoGame
from grue.games.teachers.scripted import HasWords
from grue.games.textworld.make import game_file
from grue.games.worker.game import WorkerGame, WorkerGoldGame
from grue.games.worker.process import WorkerSettings, shutdown
from grue.types import Outcome, Task

QUICK = "validActions=0"
SOURCE = Path(__file__).with_name("cave.inf")
WIN = ["take lamp", "down", "open box"]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where stories are compiled. A seat is kept, so that the process with the engine stays from test to test."""
    stories = tmp_path_factory.mktemp("stories")
    name = compiled(stories, 3)
    warm = games.make(name)
    warm.reset(first(name))
    yield stories
    warm.close()
    shutdown()


@pytest.fixture(scope="module", params=[3, 5])
def cave(request: pytest.FixtureRequest, folder: Path) -> str:
    """The name of the game in cave.inf, for a version of the machine that shows its score and for one that does not."""
    return compiled(folder, request.param)


def compiled(folder: Path, version: int, name: str = "cave", before: str = "", after: str = "") -> str:
    """The name of the game in cave.inf, in which `after` takes the place of `before`."""
    story, source = folder / f"{name}.z{version}", folder / f"{name}.inf"
    if not story.exists():
        text = SOURCE.read_text(encoding="utf-8")
        assert before in text
        source.write_text(text.replace(before, after) if before else text, encoding="utf-8")
        compiler = next(path for path in Path(textworld.__file__).parent.rglob("inform6") if path.is_file())
        command = [compiler, f"-v{version}", source, story]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert story.exists(), done.stdout + done.stderr
    return f"jericho:{story}"


def first(game: str, params: str = "", fold: str = "train", limit: int = 30) -> Task:
    return games.tasks(game, params, fold, limit, count=1)[0]


def test_a_story_keeps_the_contract(cave: str) -> None:
    check_game(lambda: games.make(cave), first(cave))


def test_score_and_inventory_are_known_after_every_move(cave: str) -> None:
    game = JerichoGame(cave)
    observation = game.reset(first(cave))
    assert observation.text.startswith("CAVE")
    assert "10 at most" in observation.goal
    assert observation.inventory == "You carry nothing."
    rewards = []
    for action in ["wait", "take lamp", "drop lamp", "take lamp", "down"]:
        observation, reward, outcome = game.step(action)
        rewards.append(reward)
        assert outcome is None
    assert rewards == [0.0, 0.5, -0.5, 0.5, 0.0]
    assert observation.inventory == "You carry a brass lamp."
    assert game.points_and_moves == ((5, 5) if cave.endswith("z3") else (5, 0))  # what is asked is taken back
    game.close()


def test_winning_and_dying(cave: str) -> None:
    game = games.make(cave)
    game.reset(first(cave))
    ends = [game.step(action)[1:] for action in WIN]
    assert ends == [(0.5, None), (0.0, None), (0.5, Outcome.WON)]
    game.reset(first(cave))
    game.step("down")
    observation, reward, outcome = game.step("take snake")
    assert outcome is Outcome.LOST
    assert observation.actions == ()
    assert (observation.score, reward) == (-0.7, -0.7)  # which the ending says, where memory does not
    game.close()


@pytest.mark.parametrize("version", [3, 5])
def test_the_highest_score_wins_whatever_the_story_calls_it(version: int, folder: Path) -> None:
    """A story that is over answers no question about its score: it may have said it."""
    name = compiled(folder, version, "escaped", "You have won", "You have escaped")
    game = games.make(name)
    game.reset(first(name))
    assert [game.step(action)[2] for action in WIN] == [None, None, Outcome.WON]
    game.close()


@pytest.mark.parametrize(
    "boast", ["The best score is 10.", "The snake has scored 10 bites.", "You once scored^10 of 99."]
)
def test_other_numbers_at_the_end_are_not_the_score(boast: str, folder: Path) -> None:
    name = compiled(folder, 5, f"boast{len(boast)}", "It bites", f"{boast} It bites")
    game = games.make(name)
    game.reset(first(name))
    game.step("take lamp")
    game.step("down")
    observation, _, outcome = game.step("take snake")
    assert (observation.score, outcome) == (-0.2, Outcome.LOST)
    game.close()


def test_valid_actions_are_those_that_change_the_world(cave: str) -> None:
    """The bat flies every turn, so a change alone says nothing; "up" in the hall is refused but costs a turn."""
    game = JerichoGame(cave)
    in_hall = game.reset(first(cave)).actions
    assert in_hall == ("down", "examine lamp", "inventory", "look", "take lamp", "wait")
    game.step("take lamp")
    assert "drop lamp" in (game.step("down")[0].actions or ())
    in_cellar = game.step("look")[0].actions
    game.close()
    assert in_cellar is not None
    assert {"open box", "take snake", "drop lamp", "up", "examine snake", "tie lamp to snake"} <= set(in_cellar)
    assert not {"down", "take lamp", "take box", "open snake"} & set(in_cellar)


def test_whoever_tries_valid_actions_at_random_gets_there(cave: str) -> None:
    game, draw = games.make(cave), random.Random(0)
    for task in games.tasks(cave, "", "train", 200, count=3):
        observation, outcome = game.reset(task), None
        while outcome is None:
            safe = [action for action in observation.actions or () if action != "take snake"]
            observation, _, outcome = game.step(draw.choice(safe))
        assert outcome is Outcome.WON
    game.close()


def test_trials_leave_no_trace(cave: str) -> None:
    """The dice fall the same whether or not hundreds of actions were tried and taken back in between."""

    def throws(params: str) -> list[str]:
        game = JerichoGame(cave, params)
        game.reset(first(cave, params))
        texts = [game.step("dice")[0].text for _ in range(5)]
        game.close()
        return texts

    assert throws("validActions=1") == throws(QUICK)


def test_what_was_found_in_a_state_is_known_when_an_episode_comes_there_again(cave: str) -> None:
    def seen(actions: list[str], params: str = "") -> list[tuple[str, tuple[str, ...] | None]]:
        game = JerichoGame(cave, params)
        found = [game.reset(first(cave, params)), *(game.step(action)[0] for action in actions)]
        game.close()
        return [(observation.inventory, observation.actions) for observation in found]

    jericho._found.clear()
    here, elsewhere = ["take lamp", "dice", "down"], ["take lamp", "down", "look"]
    both = [seen(here), seen(elsewhere)]
    states = len(jericho._found)
    assert states == 4 + 2  # two states of the second way are of the first one too
    assert [seen(here), seen(elsewhere)] == both and len(jericho._found) == states
    assert seen(here, QUICK) == [(carried, None) for carried, _ in both[0]]
    jericho._found.clear()
    assert seen(elsewhere) == both[1]


def test_an_action_is_said_in_listed_words(cave: str) -> None:
    """As walkthroughs are for the gold player. Asking leaves no trace, and what has no equal in the list stays."""
    game = games.make(cave)
    assert isinstance(game, HasWords)
    observation = game.reset(first(cave))
    asked = {said: game.equivalent(said) for said in ("get lamp", "d", "z", "look", "dice", "up", "quit")}
    same = {"look": "look", "dice": "dice", "up": "up", "quit": "quit"}
    assert asked == {"get lamp": "take lamp", "d": "down", "z": "wait"} | same
    assert game.equivalent("get lamp", WIN[1:]) == game.equivalent("grab lamp") == "take lamp"
    assert game.equivalent("grab lamp", WIN[1:]) == "grab lamp"
    assert game.step("d")[0].inventory == observation.inventory == "You carry nothing."
    assert game.equivalent("get snake") == "take snake"  # which is the end
    game.close()


def test_the_seed_throws_the_dice(cave: str) -> None:
    game = games.make(cave, QUICK)
    assert game.reset(first(cave, QUICK)).actions is None
    thrown = []
    for task in games.tasks(cave, QUICK, "train", 30, count=3):
        game.reset(task)
        thrown.append(game.step("dice")[0].text)
    game.reset(first(cave, QUICK))
    assert game.step("dice")[0].text == thrown[0]
    game.close()
    assert len(set(thrown)) > 1


def test_a_command_that_hangs_the_story_fails_the_episode_in_time(folder: Path) -> None:
    name = compiled(folder, 3)
    game = WorkerGame(name, QUICK, settings=WorkerSettings(read_timeout_s=1.0, slow=100.0))
    game.reset(first(name, QUICK))
    game.step("take lamp")
    pid = game.pid
    with pytest.raises(GameError, match=r"died or hung 2 times .* step 1: no answer in 1 s"):
        game.step("hang")
    assert game.reset(first(name, QUICK)).text.startswith("CAVE")
    assert game.pid not in (None, pid)
    game.close()


def test_a_saved_point_can_be_gone_back_to(folder: Path) -> None:
    name = compiled(folder, 3)
    game = games.make(name, QUICK)
    assert isinstance(game, WorkerGame)
    game.reset(first(name, QUICK))
    game.step("take lamp")
    saved = game.save()
    game.step("down")
    assert game.step("take snake")[2] is Outcome.LOST
    game.restore(saved)
    assert [game.step(action)[2] for action in WIN[1:]] == [None, Outcome.WON]
    game.close()


def test_a_killed_process_does_not_show(folder: Path) -> None:
    name = compiled(folder, 3)
    game = games.make(name)
    assert isinstance(game, WorkerGoldGame)
    game.reset(first(name))
    game.step("take lamp")
    assert game.pid is not None
    os.kill(game.pid, signal.SIGKILL)
    assert game.step("down")[0].inventory == "You carry a brass lamp."
    assert game.step("open box")[2] is Outcome.WON
    game.close()


@pytest.mark.parametrize("action", ["quit", "restart", "save", "take lamp. down", "take lamp then down", "$ve", ""])
def test_commands_to_the_interpreter_are_answered_here(folder: Path, action: str) -> None:
    name = compiled(folder, 3)
    game = JerichoGame(name, QUICK)
    game.reset(first(name, QUICK))
    observation, reward, outcome = game.step(action)
    assert (reward, outcome, observation.inventory) == (0.0, None, "You carry nothing.")
    assert game.points_and_moves == (0, 0)
    game.close()


def test_the_max_score_can_be_given(folder: Path) -> None:
    name = compiled(folder, 3)
    game = games.make(name, "maxScore=20")
    game.reset(games.tasks(name, "maxScore=20", "dev", 9, count=1)[0])
    assert game.step("take lamp")[1] == 0.25
    game.close()


def test_a_file_that_jericho_does_not_know_has_no_walkthrough(folder: Path) -> None:
    name = compiled(folder, 3)
    game = games.make(name)
    assert isinstance(game, WorkerGoldGame)
    game.reset(first(name))
    with pytest.raises(TeacherError, match="no walkthrough"):
        game.gold()
    assert game.rehearse(WIN)[-1] == (True, True)
    game.close()


def test_a_game_of_textworld_runs_as_a_plain_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRUE_CACHE", str(tmp_path))
    made = games.tasks("textworld-coin", "level=2", "train", 30, count=1)[0]
    expert = games.make("textworld-coin", "level=2")
    expert.reset(made)
    path = expert.gold()  # type: ignore[attr-defined]
    expert.close()
    name = f"jericho:{game_file(made)}"
    game = games.make(name)
    observation = game.reset(first(name))
    for action in path:
        assert action in (observation.actions or ()) or action.removeprefix("go ") in (observation.actions or ())
        observation, _, outcome = game.step(action)
    game.close()
    assert outcome is Outcome.WON


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jericho", "needs a story file"),
        ("jericho:", "names no file"),
        ("jericho:nowhere.z5", "no file"),
        (f"jericho:{SOURCE}", "not a Z-machine story file"),
    ],
)
def test_wrong_files_are_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        games.make(name).reset(first(name))


def test_a_file_that_was_cut_short_is_refused(cave: str, tmp_path: Path) -> None:
    whole = Path(cave.partition(":")[2]).read_bytes()
    cut = tmp_path / "cut.z3"
    cut.write_bytes(whole[:1000])
    with pytest.raises(ConfigError, match=r"cut\.z3 is cut short.* has 1000 bytes, \d+ by its header"):
        games.make(f"jericho:{cut}").reset(first(f"jericho:{cut}"))
