"""ALFWorld for real: homes that are made here, as they are and written out like the data that one downloads."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("alfworld", reason="pip install -e '.[alfworld]'")

from grue import games
from grue.errors import ConfigError, GameError
from grue.games.alfworld.data import OFFICIAL, SPLITS, TASK_TYPES, game_file
from grue.games.alfworld.micro import home
from grue.games.check import check_game
from grue.games.play import play
from grue.games.teachers import teacher
from grue.games.worker.game import WorkerExpertsGame
from grue.games.worker.process import WorkerSettings, shutdown
from grue.types import Observation, Outcome, Task

MICRO = "alfworld-micro"
DOWNLOAD = "alfworld-download --data-dir"
HOSTILE = '"{__import__(\'pathlib\').Path(\'LEFT\').touch()}" "task": [{"rhs": "Your task is to: SAID."}]'


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    """A seat that keeps the process with the engine from test to test."""
    warm = opened(MICRO)
    warm.reset(first(MICRO))
    yield
    warm.close()
    shutdown()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like that of the official data: three games for training, two for each validation split."""
    folder = tmp_path_factory.mktemp("alfworld")
    for fold, count in (("train", 3), ("dev", 2), ("test", 2)):
        for place, task in enumerate(games.tasks(MICRO, f"task={1 + count % 2}", fold, count=count)):
            write(folder / "json_2.1.1" / SPLITS[fold], task, place)
    return folder


def write(split: Path, task: Task, place: int, *, scene: str = "Home-1", solvable: bool = True) -> Path:
    """`task` of the micro game as files. Their texts for the engine are hostile: nobody may evaluate them."""
    made = home(task)
    folder = split / f"{made.task_type}-{scene}" / f"trial_{place}"
    folder.mkdir(parents=True)
    grammar = HOSTILE.replace("SAID", made.goal).replace("LEFT", str(folder / "evaluated"))
    plain = {"pddl_domain": "?", "grammar": grammar, "pddl_problem": made.problem, "solvable": solvable}
    (folder / "game.tw-pddl").write_text(json.dumps(plain))
    params = {"object_sliced": False} | {key: value.title() for key, value in made.targets.items()}
    (folder / "traj_data.json").write_text(json.dumps({"task_type": made.task_type, "pddl_params": params}))
    return folder


def first(game: str, params: str = "", fold: str = "train", limit: int = 60) -> Task:
    return games.tasks(game, params, fold, limit, count=1)[0]


def opened(game: str, params: str = "", timeout: float = 60.0) -> WorkerExpertsGame:
    made = games.make(game, params, read_timeout_s=timeout)
    assert isinstance(made, WorkerExpertsGame)
    return made


def test_games_keep_the_contract(data: Path) -> None:
    check_game(lambda: opened(MICRO), first(MICRO))
    check_game(lambda: opened(f"alfworld:{data}"), first(f"alfworld:{data}", fold="dev"))


@pytest.mark.parametrize("kind", range(1, 7))
def test_both_experts_win_every_type_of_task(kind: int) -> None:
    params = f"task={kind}"
    game = opened(MICRO, params)
    for task in games.tasks(MICRO, params, "train", 200, count=1, start=kind):
        steps = {}
        for who in ("optimal", "explore", "gold"):
            episode = play(game, task, teacher(who, game))
            assert (episode.outcome, episode.score) == (Outcome.WON, 1.0), who
            assert [turn.reward for turn in episode.turns] == [0.0] * (episode.steps - 1) + [1.0]
            assert all(turn.valid for turn in episode.turns)
            steps[who] = episode.steps
        assert steps["optimal"] <= steps["gold"] == steps["explore"]
        pruned = play(game, task, teacher("gold-pruned", game))
        assert pruned.won and pruned.steps <= steps["gold"]
    game.close()


@pytest.mark.parametrize("kind", [4, 6])
def test_experts_go_on_from_wherever_somebody_else_has_got_to(kind: int) -> None:
    params = f"task={kind}"
    game, task = opened(MICRO, params), first(MICRO, params, limit=200)
    for who in (game.advice, lambda: game.plan()[0]):
        draw = random.Random(2)
        observation, outcome = game.reset(task), None
        for action in ["look", "put everything away", "inventory", "go to mars"]:
            observation = game.step(action)[0]
        for _ in range(10):
            observation, _, outcome = game.step(draw.choice(observation.actions or ()))
            assert outcome is None
        while outcome is None:
            outcome = game.step(who())[2]
        assert outcome is Outcome.WON
    game.close()


def test_what_is_seen() -> None:
    game, task = opened(MICRO, "task=1"), first(MICRO, "task=1")
    seen = [game.reset(task)]
    for action in game.plan():
        seen.append(game.step(action)[0])
        held = re.match(r"You pick up the (\w+ \d)", seen[-1].text)
        if held:
            assert seen[-1].inventory == f"You carry a {held[1]}."
    game.close()
    assert seen[0].text.startswith("You are in the middle of a room.")
    assert seen[0].inventory == seen[-1].inventory == "You carry nothing."
    assert {observation.goal for observation in seen} == {f"Your task is to: {home(task).goal}."}
    assert all("UNKNOWN" not in observation.text and "Welcome" not in observation.text for observation in seen)
    assert seen[-1].text.startswith("You move the ")


@pytest.mark.parametrize("action", ["put apple 1 in/on fridge 1", "go to", "GO TO FRIDGE 1", "quit", "look. look", ""])
def test_what_is_no_move_costs_a_step_and_does_nothing(action: str) -> None:
    game = opened(MICRO)
    before = game.reset(first(MICRO, limit=2))
    after, reward, outcome = game.step(action)
    assert (after.actions, after.inventory, reward, outcome) == (before.actions, before.inventory, 0.0, None)
    assert game.step("look")[2] is Outcome.LIMIT
    game.close()


def test_folds_are_the_official_splits_and_seeds_are_their_games(data: Path) -> None:
    name = f"alfworld:{data}"
    for fold, count in (("train", 3), ("pretrain", 3), ("dev", 2), ("test", 2)):
        tasks = games.tasks(name, "", fold, count=count)
        files = [game_file(task) for task in tasks]
        assert len(set(files)) == count
        assert {file.parents[2] for file in files} == {data / "json_2.1.1" / SPLITS[fold]}
        with pytest.raises(ConfigError, match=f"has {count} tasks"):
            games.tasks(name, "", fold, count=count + 1)
        with pytest.raises(ConfigError, match=f"{SPLITS[fold]} has {count} games"):
            opened(name).reset(Task(name, "", fold, tasks[-1].seed + 1, 9))


def test_one_type_of_task(data: Path) -> None:
    name = f"alfworld:{data}"
    assert [len(games.tasks(name, f"task={kind}", "dev")) for kind in (1, 2, 3)] == [2, 0, 0]
    (task,) = games.tasks(name, "task=2", "train", count=1)
    game = opened(name, "task=2")
    assert "desklamp" in game.reset(task).goal
    game.close()


def test_the_order_of_games_is_not_that_of_the_disk(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    (other / "json_9").mkdir(parents=True)
    (data / "json_2.1.1" / "train").rename(other / "json_9" / "train")
    try:
        there = [game_file(task).parent.name for task in games.tasks(f"alfworld:{other}", "", "train")]
    finally:
        (other / "json_9" / "train").rename(data / "json_2.1.1" / "train")
    here = [game_file(task).parent.name for task in games.tasks(f"alfworld:{data}", "", "train")]
    assert here == there


def test_games_that_the_engine_does_not_support_are_left_out(tmp_path: Path) -> None:
    task = first(MICRO, "task=1")
    good = write(tmp_path / "train", task, 0)
    write(tmp_path / "train", task, 1, scene="SlicedApple-1")
    write(tmp_path / "train", task, 2, solvable=False)
    (write(tmp_path / "train", task, 3) / "traj_data.json").unlink()
    assert [game_file(task) for task in games.tasks(f"alfworld:{tmp_path}", "", "train")] == [good / "game.tw-pddl"]


def test_nothing_in_a_game_file_is_evaluated(data: Path) -> None:
    name = f"alfworld:{data}"
    game = opened(name)
    for task in games.tasks(name, "", "train", 60):
        assert play(game, task, teacher("gold", game)).won
    game.close()
    assert not list(data.rglob("evaluated"))


def test_missing_data_is_an_error_that_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    for ask in (lambda: games.tasks("alfworld"), lambda: games.make("alfworld")):
        with pytest.raises(ConfigError, match=r"home/.cache/alfworld \(the default\)") as raised:
            ask()
        assert f"{DOWNLOAD} {tmp_path / 'home'}" in raised.value.hint
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "there"))
    with pytest.raises(ConfigError, match=r"there \(ALFWORLD_DATA\)"):
        games.make("alfworld")
    with pytest.raises(ConfigError, match=r"no folder train or json_\*/train in nowhere \(named after the colon\)"):
        games.make("alfworld:nowhere")
    (tmp_path / "there" / "train").mkdir(parents=True)
    with pytest.raises(ConfigError, match="no games in"):
        games.make("alfworld")
    monkeypatch.setenv("ALFWORLD_DATA", str(data))
    with pytest.raises(ConfigError, match=f"train .* has 3 games, not {OFFICIAL['train']}: it is incomplete") as raised:
        games.make("alfworld")
    assert f"game.name=alfworld:{data}" in raised.value.hint


@pytest.mark.parametrize("given", ["", "data"])
def test_playing_leaves_the_home_folder_and_the_variable_alone(given: str, tmp_path: Path) -> None:
    script = """if True:
        import os
        from grue.games.native import open_here
        from grue.games import tasks
        game = open_here("alfworld-micro", "")
        assert game.reset(tasks("alfworld-micro", count=1)[0]).text
        print(os.environ.get("ALFWORLD_DATA", ""))"""
    home = {**os.environ, "HOME": str(tmp_path)}
    home.pop("ALFWORLD_DATA", None)
    if given:
        home["ALFWORLD_DATA"] = given
    done = subprocess.run([sys.executable, "-c", script], env=home, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [given] * bool(given)
    assert not (tmp_path / ".cache" / "alfworld").exists()


def test_official_data_is_found_by_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All games of a split are the same one here; what counts is that they are all there."""
    kept = write(tmp_path / "json_2.1.1" / "valid_unseen", first(MICRO, "task=5"), 0)
    for place in range(1, OFFICIAL["valid_unseen"]):
        copy = tmp_path / "json_2.1.1" / "valid_unseen" / f"{TASK_TYPES[4]}-Home-{place + 1}" / "trial_0"
        copy.mkdir(parents=True)
        for file in kept.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    tasks = games.tasks("alfworld", "", "test")
    assert len(tasks) == len({game_file(task) for task in tasks}) == 134


@pytest.mark.parametrize("torn", ["game.tw-pddl", "traj_data.json"])
def test_a_torn_game_fails_alone(tmp_path: Path, torn: str) -> None:
    folder = write(tmp_path / "train", first(MICRO, "task=1"), 0)
    name = f"alfworld:{tmp_path}"
    game = opened(name)
    text = (folder / torn).read_text()
    (folder / torn).write_text(text[: len(text) // 2] + '"solvable": true')
    with pytest.raises(GameError, match="is not an ALFWorld game"):
        game.reset(first(name))
    (folder / torn).write_text(text)
    assert game.reset(first(name)).actions
    game.close()


def test_solutions_and_closed_games_leave_the_process_alone() -> None:
    """They used to crash it: the library cannot be loaded again once it has been unloaded."""
    settings = WorkerSettings(read_timeout_s=60.0)
    game, pids = WorkerExpertsGame(MICRO, settings=settings), set()
    for task in games.tasks(MICRO, "", "train", 30, count=3):
        game.reset(task)
        assert game.gold()
        other = WorkerExpertsGame(MICRO, settings=settings)
        other.reset(task)
        pids |= {game.pid, other.pid}
        other.close()
    game.close()
    assert len(pids) == 1


def test_the_quickened_engine_says_what_the_plain_one_says() -> None:
    """To the letter; the plain one plays in a fresh process, as the other changes its libraries for good."""
    script = """
import random, sys
from grue import games
from grue.games.alfworld import engine
from grue.games.alfworld.game import AlfworldGame
if sys.argv[1] == "plain":
    engine._quicken = lambda: None
dice, game = random.Random(0), AlfworldGame("alfworld-micro")
for task in games.tasks("alfworld-micro", "", "train", 12, count=2):
    observation, outcome = game.reset(task), None
    for action in [*game.gold()[:6], *[None] * 6]:
        print(observation)
        if outcome is None:
            observation, _, outcome = game.step(action or dice.choice(observation.actions))
"""
    said = [
        subprocess.run([sys.executable, "-c", script, how], capture_output=True, text=True, check=True).stdout
        for how in ("plain", "quick")
    ]
    assert said[0] == said[1] and len(said[0].splitlines()) == 24


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_dies_or_hangs_does_not_show(blow: int) -> None:
    task = first(MICRO, "task=6", limit=100)

    def transcript(*, strike: bool) -> list[tuple[str, Observation]]:
        game = WorkerExpertsGame(MICRO, "task=6", settings=WorkerSettings(read_timeout_s=4.0, slow=20.0))
        seen = [("", game.reset(task))]
        outcome = None
        while outcome is None:
            if strike and len(seen) == 4:
                assert game.pid is not None
                os.kill(game.pid, blow)
            action = game.advice()
            observation, _, outcome = game.step(action)
            seen.append((action, observation))
        game.close()
        return seen

    assert transcript(strike=True) == transcript(strike=False)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grue.errors.find_spec", lambda module: None)
    for ask in (lambda: games.make(MICRO), lambda: games.make("alfworld"), lambda: games.tasks("alfworld")):
        with pytest.raises(ConfigError, match=re.escape("-e '.[alfworld]'")):
            ask()


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("alfworld", "task=7", "0 to 6"),
        (MICRO, "level=1", "unknown parameter 'level'"),
        ("alfworld:", "", "names no file"),
        (f"{MICRO}:folder", "", "takes no file"),
    ],
)
def test_wrong_requests_are_refused(name: str, params: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        games.make(name, params)
