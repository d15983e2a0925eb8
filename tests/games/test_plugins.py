"""Games of other packages, found by their entry points, and `grue check-game`."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tiny
from grue import games
from grue.cli.main import app
from grue.cli.play import what_to_play
from grue.config import load_config, override
from grue.errors import ConfigError, GameError, ModelError, TeacherError
from grue.evaluate.stats import wilson
from grue.games.base import Game
from grue.games.faults import Guarded
from grue.games.play import play
from grue.games.plugins import load_class
from grue.games.teachers import HasGold, teacher
from grue.games.teachers.optimal import SeesAll
from grue.games.teachers.planned import CanAdvise, CanPlan
from grue.games.teachers.scripted import CanRehearse, HasWords
from grue.games.toy import ToyGame
from grue.policy.decision import Decoding
from grue.progress import Progress
from grue.rollout.collect import collect
from grue.stages import run_all, run_stage
from grue.storage import episodes
from grue.storage.contents import read_evaluation, read_metrics, read_stages
from grue.types import Observation, Outcome, Task

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages; one of them declares the game of the examples."""
    (tmp_path / "guess_package.py").write_text((EXAMPLES / "guess.py").read_text(encoding="utf-8"), encoding="utf-8")
    tiny.install(tmp_path, "guess_package", "guess = guess_package:Guess\nbroken = guess_package:Nothing")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "guess_package", raising=False)
    return tmp_path


def test_a_game_without_a_list_of_actions_is_refused_to_who_chooses_among_them(packages: Path, tmp_path: Path) -> None:
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    (packages / "mute_package.py").write_text(text.replace('tuple("0123456789")', "None"), encoding="utf-8")
    tiny.install(packages, "mute_package", "mute = mute_package:Guess")
    config = load_config(None, ["game.name=mute", "demos.games=2", "demos.teacher=random", "policy.kind=choose"])
    for run in (run_all, partial(run_stage, "demos")):
        with pytest.raises((ConfigError, ModelError), match="lists no valid actions") as caught:
            run(config, tmp_path / "run", say=Progress(quiet=True))
        assert caught.value.hint.startswith("set policy.kind=write")
        assert read_stages(tmp_path / "run") == {}
    writes = override(config, ["policy.kind=write"], None)
    with pytest.raises(GameError, match=r"the teacher random cannot play the first of 3 train games: .* lists none"):
        run_stage("demos", writes, tmp_path / "run", say=Progress(quiet=True))
    assert read_stages(tmp_path / "run") == {}


def test_nothing_is_deleted_for_a_game_that_no_longer_begins(packages: Path, tmp_path: Path) -> None:
    """A story file that is not in this folder, Java that does not start: --again had deleted weights and results."""
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    needed = packages / "needed.txt"
    begins = f"        if not Path({str(needed)!r}).exists():\n            raise GameError('there is no needed.txt')\n"
    text = text.replace("        check_seed(task)\n", f"        check_seed(task)\n{begins}", 1)
    text = text.replace("from random import", "from pathlib import Path\nfrom random import", 1)
    (packages / "filed_package.py").write_text(text, encoding="utf-8")
    tiny.install(packages, "filed_package", "filed = filed_package:Guess")
    needed.touch()
    sizes = [
        "game.limit=4",
        "demos.games=4",
        "demos.teacher=random",
        "sft.epochs=1",
        "ppo.iterations=1",
        "eval.games=4",
    ]
    config = load_config("toy", ["game.name=filed", "ppo.dev_every=0", "eval.games=4", *sizes])
    run_all(config, tmp_path / "run", say=Progress(quiet=True))
    needed.unlink()
    before = sorted(path for path in (tmp_path / "run").rglob("*") if path.is_file())
    for stage in ("sft", "ppo", "eval"):
        with pytest.raises(GameError, match=r"there is no needed\.txt"):
            run_stage(stage, config, tmp_path / "run", say=Progress(quiet=True), again=True)
        assert sorted(path for path in (tmp_path / "run").rglob("*") if path.is_file()) == before


def test_a_game_whose_first_text_is_too_long_is_refused_before_its_demonstrations(
    packages: Path, tmp_path: Path
) -> None:
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    (packages / "long_package.py").write_text(text.replace('of a number."', 'of a number. " * 999'), encoding="utf-8")
    tiny.install(packages, "long_package", "long = long_package:Guess")
    config = load_config(None, ["game.name=long", "demos.games=2", "demos.teacher=random"])
    with pytest.raises(ModelError, match="more than the context of 1024"):
        run_stage("demos", config, tmp_path / "run", say=Progress(quiet=True))
    assert read_stages(tmp_path / "run") == {}


def test_a_game_without_a_list_of_actions_is_measured_without_random_play(packages: Path, tmp_path: Path) -> None:
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    mute = text.replace('tuple("0123456789")', "None")
    mute += "\n    def gold(self):\n        return [str(self.number)]\n"
    (packages / "silent_package.py").write_text(mute, encoding="utf-8")
    tiny.install(packages, "silent_package", "silent = silent_package:Guess")
    sizes = ["game.limit=3", "demos.games=4", "sft.epochs=1", "ppo.iterations=1", "ppo.dev_every=0", "eval.games=20"]
    config = load_config("toy", ["game.name=silent", "policy.kind=write", "policy.reply_tokens=4", *sizes])
    results = run_all(config, tmp_path / "run", say=Progress(quiet=True))
    assert set(results["policies"]) == {"gold", "base", "sft", "ppo"}
    assert results["policies"]["gold"]["decoding"]["scripted"]["success"] == 1
    assert results["policies"]["ppo"]["decoding"]["greedy"]["invalid"] is None  # there is no list to hold it against
    assert read_metrics(tmp_path / "run", "ppo")[0]["invalid"] is None
    assert "No test result" not in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    # nothing tells these games apart but their solutions
    assert 6 <= results["policies"]["base"]["decoding"]["greedy"].get("problems", 10) <= 10


def test_a_game_with_neither_teacher_nor_list_of_actions_is_learnt_by_ppo_alone(
    packages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    text = text.replace('tuple("0123456789")', "None")
    # the first train game cannot be begun: whether such games list actions is for another to tell
    broken = "        if task.seed == 0:\n            raise GameError('broken')\n"
    text = text.replace("        check_seed(task)\n", f"        check_seed(task)\n{broken}", 1)
    (packages / "alone_package.py").write_text(text, encoding="utf-8")
    tiny.install(packages, "alone_package", "alone = alone_package:Guess")
    sizes = ["game.limit=3", "ppo.iterations=2", "ppo.dev_every=0", "ppo.game_baseline=true", "eval.games=20"]
    config = load_config("toy", ["game.name=alone", "demos.games=0", "sft.epochs=0", *sizes])
    out = tmp_path / "run"
    with pytest.raises((ConfigError, ModelError), match="lists no valid actions"):
        run_all(config, out, say=Progress(quiet=True))
    assert read_stages(out) == {}
    config = override(config, ["policy.kind=write", "policy.reply_tokens=4", "ppo.invalid_penalty=0.1"])
    results = run_all(config, out, say=Progress(quiet=True))
    assert "alone lists no actions: ppo.invalid_penalty is for empty replies" in "".join(capsys.readouterr())
    assert set(results["policies"]) == {"base", "ppo"}
    assert [pair["b"] for pair in results["paired"]] == ["base"]
    assert not (out / "episodes" / "demos.jsonl").exists()
    assert len(read_metrics(out, "ppo")) == 2
    assert run_all(config, out, say=Progress(quiet=True)) == results
    capsys.readouterr()
    run_stage("demos", config, out, say=Progress())
    assert "demos is done in" in "".join(capsys.readouterr())  # none are lost
    assert run_stage("ppo", config, out, say=Progress(quiet=True), again=True)["env_steps"]


@pytest.mark.usefixtures("packages")
def test_a_declared_game_is_played_by_its_name() -> None:
    tasks = games.tasks("guess", "", "dev", 30, count=20)
    game = games.make("guess")
    played = [play(game, task, teacher("random", game)) for task in tasks]
    assert {episode.task.game for episode in played} == {"guess"}
    assert sum(episode.won for episode in played) > 10  # 1 - 0.9^30 is 0.96
    assert {turn.observation.text for episode in played for turn in episode.turns} > {"Higher.", "Lower."}


def test_an_exception_in_a_declared_game_fails_the_episode_and_not_the_run(packages: Path) -> None:
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    broken = text.replace("        self.steps += 1\n", "        self.steps += {'7': 1}[action]\n")
    solved = "    def gold(self) -> list[str]:\n        return [str(self.number)]\n\n    def close"
    (packages / "moody_package.py").write_text(broken.replace("    def close", solved), encoding="utf-8")
    tiny.install(packages, "moody_package", "moody = moody_package:Guess")
    game = games.make("moody")
    tasks = games.tasks("moody", "", "dev", 30, count=20)
    played = [play(game, task, teacher("gold", game)) for task in tasks]
    failed = [episode for episode in played if episode.failed]
    assert 0 < sum(episode.won for episode in played) == 20 - len(failed) < 20  # wherever the number is 7
    line = 1 + broken[: broken.index("{'7': 1}")].count("\n")
    said = re.compile(rf"the game failed: KeyError: '\d' \(moody_package\.py:{line}\)")
    assert all(said.fullmatch(episode.error) for episode in failed)


@pytest.mark.parametrize(
    ("broken", "said"),
    [("next(iter(()))", "StopIteration"), ("Outcome.FAILED", "the game said that it failed")],
)
def test_whatever_a_declared_game_fails_with_fails_the_episode(broken: str, said: str, packages: Path) -> None:
    """Also StopIteration, which a context manager does not let be reworded."""
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    name = f"odd_{len(said)}"
    (packages / f"{name}.py").write_text(text.replace("Outcome.LIMIT if", f"{broken} if"), encoding="utf-8")
    tiny.install(packages, name, f"{name} = {name}:Guess")
    game = games.make(name)
    episode = play(game, Task(name, "", "train", 0, 1), teacher("random", game))
    assert episode.failed and said in episode.error


def test_the_place_of_an_exception_is_in_the_game_and_its_traceback_is_shown_once(
    packages: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not in Python's own library, where `choice` raises it."""
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    empty = text.replace("        self.steps += 1\n", "        self.steps += Random(0).choice([])\n")
    (packages / "empty_package.py").write_text(empty, encoding="utf-8")
    tiny.install(packages, "empty_package", "empty = empty_package:Guess")
    game, line = games.make("empty"), 1 + empty[: empty.index("choice([])")].count("\n")
    tasks = games.tasks("empty", "", "dev", 30, count=2)
    (error,) = {play(game, task, teacher("random", game)).error for task in tasks}
    assert error.startswith("the game failed: IndexError: ") and error.endswith(f" (empty_package.py:{line})")
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("GRUE_DEBUG", "1")
    for task in tasks:
        play(game, task, teacher("random", game))
    said = capsys.readouterr().err
    assert said.count("Traceback (most recent call last)") == 1
    assert "self.steps += Random(0).choice([])" in said


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ('self.show(text + "\\ud800" * won, float(won)), float(won)', "half a character"),
        ('self.show(text, float("nan")), float(won)', "a score of nan"),
        ("self.show(text, 5.0 * won - 1.5), float(won)", "a score of -1.5"),
        ('Observation(text, "", "", ("7"), 0.0), float(won)', "listed its actions as a str"),
        ('Observation(text, "", "", map(str, (1, 2)), 0.0), float(won)', "listed its actions as a map"),
        ('Observation(text, "", "", ("look", 3), 0.0), float(won)', "an int for a text: 3"),
        ('self.show(text, float(won)), float("inf")', "a reward of inf"),
    ],
)
def test_what_could_not_be_stored_fails_the_episode_and_not_the_run(shown: str, said: str, packages: Path) -> None:
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    kept = "self.show(text, float(won)), float(won)"
    assert kept in text
    name = "odd_" + "".join(filter(str.isalpha, said))
    (packages / f"{name}.py").write_text(text.replace(kept, shown), encoding="utf-8")
    tiny.install(packages, name, f"{name} = {name}:Guess")
    game = games.make(name)
    played = [play(game, task, teacher("random", game)) for task in games.tasks(name, "", "dev", 60, count=3)]
    assert all(episode.failed and said in (episode.error or "") for episode in played)
    episodes.append(packages / "played.jsonl", played)
    assert [episode.error for episode in episodes.read(packages / "played.jsonl")] == [e.error for e in played]


def test_a_score_that_32_bits_have_rounded_is_a_win(packages: Path) -> None:
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    shown = text.replace("self.show(text, float(won)), float(won)", "self.show(text, 1.00001 * won), float(won)")
    assert shown != text
    (packages / "rounded_package.py").write_text(shown, encoding="utf-8")
    tiny.install(packages, "rounded_package", "rounded = rounded_package:Guess")
    game = games.make("rounded")
    played = [play(game, task, teacher("random", game)) for task in games.tasks("rounded", "", "dev", 60, count=3)]
    assert {episode.score for episode in played if episode.won} == {1.0}


def test_scores_and_rewards_of_other_types_are_stored_as_numbers(packages: Path) -> None:
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    shown = text.replace("self.show(text, float(won)), float(won)", "self.show(text, Fraction(won)), bool(won)")
    assert shown != text
    (packages / "exact_package.py").write_text(f"from fractions import Fraction\n{shown}", encoding="utf-8")
    tiny.install(packages, "exact_package", "exact = exact_package:Guess")
    game = games.make("exact")
    played = [play(game, task, teacher("random", game)) for task in games.tasks("exact", "", "dev", 60, count=3)]
    assert any(episode.won for episode in played)
    episodes.append(packages / "played.jsonl", played)
    assert list(episodes.read(packages / "played.jsonl")) == played


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda game: pickle.loads(pickle.dumps(game))], ids=["deep", "pickle"]
)
def test_a_copy_of_a_guarded_game_asks_its_own_game(copied: Callable[[Any], Any]) -> None:
    task = games.tasks("toy", "", "dev", 30, count=1)[0]
    game: Any = Guarded(ToyGame())
    game.reset(task)
    before = game.plan()
    other = copied(game)
    for action in before[:-1]:
        other.step(action)
    assert (game.plan(), other.plan()) == (before, before[-1:])
    other.step(before[-1])
    with pytest.raises(GameError, match="game that is running"):
        other.plan()
    other.reset(games.tasks("toy", "", "dev", 30, count=9)[-1])
    solved = other.gold()
    assert solved != game.gold() == before
    assert other.rehearse(solved)[-1] == (True, True)
    assert game.rehearse(before)[-1] == (True, True)


class _Poor:
    """What every game has, and things that are no methods of a game."""

    advice = None

    def reset(self, task: Task) -> Any: ...

    def step(self, action: str) -> Any: ...

    def close(self) -> None: ...

    def begin_step(self, action: str) -> None: ...

    @property
    def gold(self) -> list[str]:
        raise KeyError("nothing is known yet")


def test_a_guarded_game_has_the_methods_of_its_game_and_no_others() -> None:
    protocols = (Game, HasGold, CanRehearse, HasWords, CanAdvise, CanPlan, SeesAll)
    optional = ("gold", "plan", "rehearse", "advice", "equivalent", "begin_step", "begin_reset", "state")
    poor: Any = _Poor()
    for game, known in ((ToyGame(), ("gold", "plan", "rehearse")), (poor, ("begin_step",))):
        for guarded in (Guarded(game), copy.deepcopy(Guarded(game)), copy.copy(Guarded(game))):
            assert tuple(name for name in optional if callable(getattr(guarded, name, None))) == known
            # as protocols look since Python 3.12
            assert tuple(name for name in optional if inspect.getattr_static(guarded, name, None) is not None) == known
            if game is not poor:
                assert [isinstance(guarded, kind) for kind in protocols] == [
                    isinstance(game, kind) for kind in protocols
                ]


def test_a_game_that_cannot_solve_itself_is_trained_and_played(packages: Path, tmp_path: Path) -> None:
    """The command of the documents, in small: random demonstrations, no SFT, no row for gold."""
    changes = ["game.name=guess", "game.limit=10", "demos.teacher=random", "demos.games=4", "sft.epochs=0"]
    sizes = ["ppo.iterations=1", "ppo.dev_every=1", "ppo.dev_games=40", "eval.games=40", "eval.side_games=0"]
    config = load_config("toy", [*changes, *sizes])
    results = run_all(config, tmp_path / "run", say=Progress(quiet=True))
    assert set(results["policies"]) == {"random", "base", "ppo"}
    # ten numbers are ten problems, whatever the number of games
    scripted = results["policies"]["random"]["decoding"]["scripted"]
    assert scripted["games"] == 40 and 9 <= scripted["problems"] <= 10
    first = read_metrics(tmp_path / "run", "dev")[0]
    low, high = wilson(round(40 * first["success_greedy"]), 40)
    assert first["success_greedy_hi"] - first["success_greedy_lo"] > 1.5 * (high - low)
    assert [pair["b"] for pair in results["paired"]] == ["base"]
    task, _ = what_to_play("guess", [], 10_000)
    assert (task.game, task.fold) == ("guess", "dev")
    with pytest.raises(GameError, match=r"'gold' needs a game with a method gold\(\)") as caught:
        run_stage("demos", load_config("toy", changes[:2]), tmp_path / "other", say=Progress(quiet=True))
    assert "demos.teacher" in caught.value.hint


def install_shaky(packages: Path, name: str) -> Any:
    """Declare the game of the examples, which here raises when it starts a game that its module's `breaks` says."""
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    shaky = text.replace(
        "        check_seed(task)\n", "        check_seed(task)\n        assert not breaks(task), 'no door'\n"
    )
    (packages / f"{name}.py").write_text(f"{shaky}\n\ndef breaks(task):\n    return False\n", encoding="utf-8")
    tiny.install(packages, name, f"{name} = {name}:Guess")
    return importlib.import_module(name)


def _no_solution(game: Game) -> list[str]:
    raise GameError("no solution is known")


def test_an_evaluation_of_which_every_game_failed_is_not_done(packages: Path, tmp_path: Path) -> None:
    module, out = install_shaky(packages, "shaky_test"), tmp_path / "run"
    changes = ["game.name=shaky_test", "game.limit=10", "demos.teacher=random", "demos.games=4", "sft.epochs=0"]
    config = load_config("toy", [*changes, "ppo.iterations=0", "eval.games=4", "eval.side_games=2"])
    module.breaks = lambda task: task.fold == "test"
    for _ in range(2):
        with pytest.raises(GameError, match=r"all 4 test games failed, played by random: .* no door") as caught:
            run_all(config, out, say=Progress(quiet=True))
        assert caught.value.hint.startswith("grue check-game shaky_test")
        assert read_stages(out)["eval"]["state"] == "begun" and read_evaluation(out) == []
    module.breaks = lambda task: False
    module.Guess.gold = _no_solution  # which is no failure of the game
    policies = run_all(config, out, say=Progress(quiet=True))["policies"]
    found = {name: policies[name]["decoding"]["scripted"] for name in ("random", "gold")}
    assert [(row["games"], row["failed"]) for row in found.values()] == [(4, 0), (0, 4)]


def test_a_game_that_has_no_solutions_after_all_has_no_row_of_gold(packages: Path, tmp_path: Path, capsys: Any) -> None:
    """As a story file that comes without its walkthrough."""
    module = install_shaky(packages, "unsolved")

    def gold(game: Game) -> list[str]:
        raise TeacherError("there is no walkthrough")

    module.Guess.gold = gold
    changes = ["game.name=unsolved", "game.limit=10", "demos.teacher=random", "demos.games=4", "sft.epochs=0"]
    config = load_config("toy", [*changes, "ppo.iterations=0", "eval.games=4", "eval.side_games=0"])
    results = run_all(config, tmp_path / "run", say=Progress())
    assert set(results["policies"]) == {"random", "base"}
    assert capsys.readouterr().out.count("no row of gold in the table: there is no walkthrough") == 1


def test_ppo_says_how_many_of_its_games_failed(packages: Path, tmp_path: Path, capsys: Any) -> None:
    """Once at its end, and beside the iteration in which they did."""
    module, out = install_shaky(packages, "shaky_train"), tmp_path / "run"
    changes = ["game.name=shaky_train", "game.limit=10", "demos.teacher=random", "demos.games=4", "sft.epochs=0"]
    changes += ["ppo.episodes_per_iteration=8", "ppo.plays_per_game=1", "ppo.iterations=2", "ppo.dev_every=0"]
    config = load_config("toy", changes)
    for stage in ("demos", "sft"):
        run_stage(stage, config, out, say=Progress(quiet=True))
    started = []

    def breaks(task: Task) -> bool:
        started.append(task)
        return len(started) in (2, 4, 5)

    module.breaks = breaks
    capsys.readouterr()
    run_stage("ppo", config, out, say=Progress(every_s=0))
    said = capsys.readouterr().out
    assert said.count("warning: 3 of 16 games failed in PPO, the first with: the game failed: AssertionError") == 1
    first, second = [line for line in said.splitlines() if line.startswith("PPO") and "elapsed" in line]
    assert first.endswith(" 3 failed") and "failed" not in second


def test_dagger_says_how_many_of_its_games_failed(packages: Path, tmp_path: Path, capsys: Any) -> None:
    module, out = install_shaky(packages, "shaky_advised"), tmp_path / "run"
    module.Guess.plan = lambda game: [str(game.number)]
    changes = ["game.name=shaky_advised", "game.limit=10", "demos.teacher=random", "demos.games=4", "sft.epochs=0"]
    changes += ["dagger.rounds=2", "dagger.games_per_round=6", "dagger.steps=2", "dagger.dev_every=0"]
    config = load_config("toy", [*changes, "dagger.teacher=optimal"])
    for stage in ("demos", "sft"):
        run_stage(stage, config, out, say=Progress(quiet=True))
    started = []

    def breaks(task: Task) -> bool:
        started.append(task)
        return len(started) in (2, 4)

    module.breaks = breaks
    capsys.readouterr()
    run_stage("dagger", config, out, say=Progress(every_s=0))
    said = capsys.readouterr().out
    assert said.count("warning: 2 of 12 games failed in DAgger, the first with: the game failed: AssertionError") == 1


@pytest.mark.usefixtures("packages")
def test_parameters_without_a_check_of_the_game_are_sorted() -> None:
    assert games.canonical_params("guess", {"b": 2, "a": 1}) == "a=1,b=2"


@pytest.mark.usefixtures("packages")
def test_a_declared_game_refuses_tasks_of_other_games_and_parameters() -> None:
    """Its class is called with parameters, so it would play its own and record them as those of the task."""
    game, task = games.make("guess", "b=2,a=1"), games.tasks("guess", {"a": 1, "b": 2}, "dev", 30, count=1)[0]
    assert game.reset(task) == game.reset(replace(task, params="b=2,a=1"))
    with pytest.raises(ConfigError, match="'guess' with a=1,b=2 cannot play one with a=1") as caught:
        game.reset(replace(task, params="a=1"))
    assert "games.make(task.game, task.params)" in caught.value.hint
    with pytest.raises(ConfigError, match="'guess' cannot play 'toy'"):
        game.reset(replace(task, game="toy"))


@pytest.mark.usefixtures("packages")
def test_a_declaration_that_leads_nowhere_says_where() -> None:
    with pytest.raises(GameError, match="guess_package has no class 'Nothing'"):
        games.make("broken")


def test_two_packages_with_one_name_are_refused(packages: Path) -> None:
    tiny.install(packages, "other_package", "guess = other_package:Other")
    with pytest.raises(ConfigError, match="several packages"):
        games.make("guess")


def test_an_undeclared_game_is_unknown() -> None:
    with pytest.raises(ConfigError, match="unknown game 'guess'") as caught:
        games.make("guess")
    assert "entry point grue.games" in caught.value.hint


@pytest.mark.parametrize(
    ("kept", "broken", "said"),
    [
        ("Outcome.LIMIT if self.steps == self.task.limit else None", "None", "a limit of "),
        ('def __init__(self, params: str = "")', "def __init__(self)", "making it"),
        (
            "close(self) -> None:\n        self.task = None",
            "close(self) -> None:\n        del self.task",
            "closing it, twice,",
        ),
        ("def step(self, action: str)", "def step(self)", "playing it raised TypeError"),
        ('tuple("0123456789")', 'list("0123456789")', "valid actions are a tuple, or None, but they are a list"),
        (
            'tuple("0123456789")',
            "('fig\\n', 'pear')",
            "a valid action is one line, without spaces around it, but one is 'fig",
        ),
        ('tuple("0123456789")', "()", "there is a valid action while the game goes on"),
        ('tuple("0123456789")', "tuple(range(10))", "text, goal, inventory and actions are str, but one is 0 ("),
        (
            "    def close",
            "    def gold(self):\n        return [str(self.number)]\n\n    rehearse = lambda *_: []\n\n    def close",
            "rehearse(gold()) wins",
        ),
        (
            "    def close",
            "    check_params = staticmethod(lambda params: params + 'x')\n\n    def close",
            "check_params('x') changes its spelling",
        ),
        ('tuple("0123456789")', "__import__('sys').exit(0)", "playing it raised SystemExit"),
        ("action < str(self.number)", "{}['lamp']", "KeyError: 'lamp' (own_game_"),
        ("action < str(self.number)", "next(iter(()))", "playing it raised StopIteration (own_game_"),
        ("float(won), outcome", "float('nan'), outcome", "a reward is a finite number, but it is nan"),
        (
            ", float(won), outcome",
            ", float(won)",
            "step gives (Observation, reward, outcome), but it gives a tuple of 2 (",
        ),
        ("self.show(text, float(won))", "self.show(None, float(won))", "text, goal, inventory and actions are str"),
        ('tuple("0123456789")', 'tuple("10")', "sorted, without doubles, but they are ('1', '0') ("),
        ("= Outcome.WON if won", "= won if won", "an outcome is None or one of Outcome, but it is True ("),
        (
            "check_seed(task)",
            "pass",
            "is refused, but reset takes it: call grue.games.base.check_seed(task) there (",
        ),
        (
            '"I think of a number."',
            'f"I think of number {id(self)}."',
            "equal first observations, but text differs: '",
        ),
        ('"Higher." if', 'f"Higher. {id(self)}" if', "equal actions give equal steps, but text differs: '"),
        ("Outcome.LIMIT if", "Outcome.FAILED if", "a game that fails raises an exception"),
        (
            "    def close",
            "    def gold(self):\n        yield str(self.number)\n\n    def close",
            "gold() gives a list of actions, but it gives <generator",
        ),
    ],
)
def test_check_game_names_a_mistake_of_a_first_game(
    kept: str, broken: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    assert kept in text
    module = "own_game_" + "".join(filter(str.isalpha, said))
    (tmp_path / f"{module}.py").write_text(text.replace(kept, broken), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = CliRunner().invoke(app, ["check-game", f"{module}:Guess", "--games", "1"])
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())


def test_check_game_looks_at_a_declared_game_without_its_guard(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    doubled = text.replace('tuple("0123456789")', 'tuple("00123456789")')
    (packages / "doubled_package.py").write_text(doubled, encoding="utf-8")
    tiny.install(packages, "doubled_package", "doubled = doubled_package:Guess\ntoy = doubled_package:Guess")
    result = CliRunner().invoke(app, ["check-game", "doubled", "--games", "1"])
    assert (result.exit_code, "valid actions are sorted, without doubles" in result.output) == (1, True)
    here = packages / "here"
    here.mkdir()
    (here / "guess_package.py").write_text("class Guess: ...", encoding="utf-8")
    monkeypatch.chdir(here)  # what is installed is checked, as it is what is played
    good = CliRunner().invoke(app, ["check-game", "guess", "--games", "1"])
    assert (good.exit_code, "1 test games keep the contract" in good.output) == (0, True)
    ships = CliRunner().invoke(app, ["check-game", "toy", "--games", "1"])
    assert (ships.exit_code, "a package declares another game 'toy'" in ships.output) == (0, True)


def test_check_game_passes_the_example_and_names_what_a_broken_game_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    (tmp_path / "own_game.py").write_text(text, encoding="utf-8")
    (tmp_path / "rude_game.py").write_text(text.replace("float(won), outcome", "1.0, outcome"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    good = CliRunner().invoke(app, ["check-game", "own_game:Guess", "--games", "2"])
    assert (good.exit_code, "2 test games keep the contract" in good.output) == (0, True)
    assert "no solution was checked: gold() is missing" in good.output
    assert "no renaming was checked: the class has no method renaming()" in good.output
    toy = CliRunner().invoke(app, ["check-game", "toy", "--games", "2"])
    assert re.search(r"gold\(\) wins in \d+ to \d+ steps\n", toy.output) and "renaming" not in toy.output
    assert re.search(r"\d+ train games look like 10 different ones\n", good.output)
    assert re.search(r"50 test games look like (9|10) different ones, 50 of them like one of \d+ of train", good.output)
    rare = text.replace("check_seed(task)", "check_seed(task)\n        assert (task.seed + 1) % 7, 'no seventh'")
    (tmp_path / "rare_game.py").write_text(rare, encoding="utf-8")
    found = CliRunner().invoke(app, ["check-game", "rare_game:Guess", "--games", "1"])
    assert re.search(r"dev seed \d+ failed: the game failed: AssertionError: no seventh", found.output)
    assert re.search(r"4\d dev games look like (9|10) different ones, 4\d of them .*; [1-9]\d? failed", found.output)
    bad = CliRunner().invoke(app, ["check-game", "rude_game:Guess", "--games", "1"])
    assert (bad.exit_code, "breaks its contract" in bad.output) == (1, True)
    late = text.replace(
        "return self.show(text, float(won)), float(won), outcome",
        "return self.show(text, 9.0 * won), 9.0 * won, outcome",
    )
    (tmp_path / "late_game.py").write_text(late, encoding="utf-8")  # too much, and only at the end
    bad = CliRunner().invoke(app, ["check-game", "late_game:Guess", "--games", "20"])
    assert (bad.exit_code, "a score is between -1 and 1" in bad.output) == (1, True)
    assert CliRunner().invoke(app, ["check-game", "own_game:Nothing"]).exit_code == 1
    unknown = CliRunner().invoke(app, ["check-game", "own_game"])
    assert unknown.exit_code and "own_game:Own_game" in unknown.output
    assert CliRunner().invoke(app, ["check-game", "toy", "rooms=99"]).exit_code in (1, 2)


def test_the_game_in_the_documents_is_the_one_in_the_examples() -> None:
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    shown = (EXAMPLES.parent / "docs" / "games.md").read_text(encoding="utf-8")
    assert text[text.index("class Guess") :].rstrip() in shown
    package = (EXAMPLES / "pyproject.toml").read_text(encoding="utf-8")
    assert f"```toml\n{package}```" in shown


def test_the_package_of_the_examples_declares_its_games(monkeypatch: pytest.MonkeyPatch) -> None:
    package = tomllib.loads((EXAMPLES / "pyproject.toml").read_text(encoding="utf-8"))
    assert package["tool"]["setuptools"]["py-modules"] == ["guess", "market"]
    monkeypatch.syspath_prepend(EXAMPLES)
    declared = package["project"]["entry-points"]["grue.games"]
    assert [load_class(declared[name]).__name__ for name in ("guess", "market")] == ["Guess", "Market"]


def test_a_configuration_cannot_name_a_class() -> None:
    with pytest.raises(ConfigError, match="unknown game") as caught:
        games.make("grue.games.toy:ToyGame")
    assert "check-game alone takes MODULE:CLASS" in caught.value.hint


def test_seeds_of_a_declared_game_are_checked(packages: Path) -> None:
    with pytest.raises(ConfigError, match="outside fold"):
        games.make("guess").reset(Task("guess", "", "train", 10_000, 5))
    assert packages.exists()


def test_actions_that_are_long_or_odd_reach_the_game_as_it_lists_them(packages: Path) -> None:
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    said = "'I guess,  after much thought, that it is ' + 'really ' * 20"
    text = text.replace('tuple("0123456789")', f"tuple({said} + digit for digit in '0123456789')")
    text = text.replace("action == str(self.number)", f"action == {said} + str(self.number)")
    solved = f"    def gold(self) -> list[str]:\n        return [{said} + str(self.number)]\n\n    def close"
    (packages / "wordy.py").write_text(text.replace("    def close", solved), encoding="utf-8")
    tiny.install(packages, "wordy", "wordy = wordy:Guess")
    game, task = games.make("wordy"), games.tasks("wordy", "", "train", 5, count=1)[0]
    won = play(game, task, teacher("gold", game))
    assert won.won and won.turns[0].valid and len(won.turns[0].action) > 150
    assert all(turn.valid for turn in play(game, task, teacher("random", game)).turns)
    pytest.importorskip("gymnasium")
    from grue.wrappers.gym import GrueEnv

    env = GrueEnv("wordy")
    env.reset(options={"game_seed": task.seed})
    assert won.turns[0].action in env.action_space
    assert env.step(won.turns[0].action)[1] == 1.0


@pytest.mark.parametrize("params", ["stalls=5", {"stalls": 5}])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 'stalls=' + params.split('=')[1]", ""),
        ("return params[0]['stalls']", "check_params of the game .* raised TypeError"),
        ("return None", "gave a NoneType"),
    ],
)
def test_parameters_reach_the_check_of_the_game_as_text(
    params: str | dict[str, int], body: str, said: str, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "stalls_" + "".join(filter(str.isalpha, said))
    checked = f"    @staticmethod\n    def check_params(params: str) -> str:\n        {body}\n\n    def reset"
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8").replace("    def reset", checked)
    (packages / f"{name}.py").write_text(text, encoding="utf-8")
    tiny.install(packages, name, f"{name} = {name}:Guess")
    monkeypatch.chdir(packages)
    checked_by_hand = CliRunner().invoke(app, ["check-game", f"{name}:Guess", "--games", "1", "stalls=5"])
    if not said:
        assert games.canonical_params(name, params) == "stalls=5"
        assert checked_by_hand.exit_code == 0
        return
    with pytest.raises(GameError, match=said):
        games.make(name, params)
    assert checked_by_hand.exit_code == 1 and "check_params" in checked_by_hand.output


@pytest.mark.parametrize(
    ("text", "asked", "said", "hint"),
    [
        ("x = = 1", "Game", "SyntaxError: theirs.py, line 1: invalid syntax", "import theirs"),
        ("1 / 0", "Game", "ZeroDivisionError: division by zero", "import theirs"),
        ("import not_there", "Game", "No module named 'not_there'", "import theirs"),
        ("class Guess: ...", "Gues", "theirs has no class 'Gues'", "did you mean Guess?"),
    ],
)
def test_a_class_that_cannot_be_had_is_one_line(
    text: str, asked: str, said: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    with pytest.raises(GameError, match=said) as caught:
        load_class(f"theirs:{asked}")
    assert hint in caught.value.hint
    monkeypatch.delitem(sys.modules, "theirs", raising=False)


def test_a_game_that_leaves_the_program_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaving.py").write_text("import sys\nclass Guess: pass\nsys.exit(0)\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = CliRunner().invoke(app, ["check-game", "leaving:Guess"])
    assert result.exit_code == 1 and "SystemExit" in result.output


class _Endless(ToyGame):
    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        observation, reward, _ = super().step("look")
        self._steps = 0
        return observation, reward, None

    def gold(self) -> list[str]:
        return None  # type: ignore[return-value]


def test_a_game_that_never_ends_fails_at_its_limit() -> None:
    game = Guarded(_Endless())
    (task,) = tiny.tasks(1)
    played = play(game, task, teacher("random", game))
    assert (played.outcome, played.steps) == (Outcome.FAILED, task.limit - 1)
    assert "did not end at its step limit" in played.error


def test_a_path_that_is_none_fails_the_episode() -> None:
    game = Guarded(_Endless())
    (task,) = tiny.tasks(1)
    played = play(game, task, teacher("gold", game))
    assert played.outcome is Outcome.FAILED and "gold() of the game gave None" in played.error


def test_a_game_that_cannot_be_made_is_an_error(packages: Path) -> None:
    text = (EXAMPLES / "guess.py").read_text(encoding="utf-8")
    assert text.count('def __init__(self, params: str = "") -> None:') == 1
    broken = text.replace(
        'def __init__(self, params: str = "") -> None:',
        "def __init__(self, params: str = \"\") -> None:\n        raise ValueError('init!')\n",
    )
    (packages / "unmade_package.py").write_text(broken, encoding="utf-8")
    tiny.install(packages, "unmade_package", "unmade = unmade_package:Guess")
    with pytest.raises(GameError, match="ValueError: init!"):
        games.make("unmade")


def test_a_teacher_that_does_not_know_the_game_is_no_crash() -> None:
    game = games.make("toy")
    with pytest.raises(TeacherError, match="explore"):
        play(game, tiny.tasks(1)[0], teacher("explore", game))


def test_what_goes_wrong_in_closing_a_game_is_its_error() -> None:
    class Rude(ToyGame):
        def close(self) -> None:
            raise RuntimeError("no")

    with pytest.raises(GameError, match="the game failed: RuntimeError: no"):
        Guarded(Rude()).close()


class _Loose(ToyGame):
    """Breaks the contract in ways that used to end a run, or to reach a policy."""

    def begin_step(self, action: str) -> None:
        raise ValueError("boom")

    def begin_reset(self, task: Task) -> None:
        raise ValueError("boom")

    def reset(self, task: Task) -> Observation:
        return _listed_backwards(super().reset(task))

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        observation, reward, outcome = super().step(action)
        return _listed_backwards(observation), reward, str(outcome) if outcome else None  # type: ignore[return-value]


def _listed_backwards(observation: Observation) -> Observation:
    return replace(observation, actions=[*(observation.actions or ()), "look"][::-1])  # type: ignore[arg-type]


def test_a_game_that_is_careless_is_played_like_one_that_is_not() -> None:
    tasks = tiny.tasks(3)
    played = [
        collect(tiny.policy(), [Guarded(game()) for _ in range(2)], tasks, Decoding(), seed="0", context=512)
        for game in (ToyGame, _Loose)
    ]
    assert played[0] == played[1]
