"""Things renamed in games of other packages: the example game, in play, in what was recorded and in a whole run."""

from __future__ import annotations

import random
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tiny
from grue import games
from grue.cli.main import app
from grue.config import load_config
from grue.errors import ConfigError, GameError
from grue.games.check import Checked, check_game
from grue.games.made_up import made_up_names
from grue.games.play import play
from grue.games.renaming import NO_SUCH_THING, Names, RenamedOwn, own_names, reworded
from grue.games.teachers import teacher
from grue.games.training import check_training, renamer, training_games
from grue.progress import Progress
from grue.stages import run_all, run_stage
from grue.storage.contents import read_metrics
from grue.types import Observation, Outcome, Task

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOWN = Observation("A lamp.", "Take it.", "", ("take lamp", "wait"), 0.0)


@pytest.fixture
def market(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages: one declares the game of the examples. Returns its file."""
    text = (EXAMPLES / "market.py").read_text(encoding="utf-8")
    tiny.install(tmp_path, "market_package", "market = market_package:Market")
    (tmp_path / "market_package.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "market_package", raising=False)
    return tmp_path / "market_package.py"


def goods() -> set[str]:
    return set(sys.modules["market_package"].GOODS["train"])


@pytest.mark.usefixtures("market")
def test_the_example_is_won_by_its_renamed_solution_and_old_names_lead_nowhere() -> None:
    (game,) = training_games([games.make("market")], 1.0, "salt")
    assert isinstance(game, RenamedOwn)
    plain = games.make("market")
    for task in games.tasks("market", "", "train", 6, count=20):
        plain.reset(task)
        gold = plain.gold()
        here = game.reset(task)
        assert not any(thing in here.text or thing in str(here.actions) for thing in goods())
        assert len(set(here.actions or ())) == 7
        outcome = None
        for action in gold:
            (shown,) = [a for a in here.actions or () if game.meant(a) == action]
            here, _, outcome = game.step(shown)
        assert outcome is Outcome.WON
        game.reset(task)
        for action in gold:
            here, reward, outcome = game.step(action)
            assert (reward, outcome) == (0.0, None)
            # "read list" is called as before
            assert here.text.startswith("It says") if action == "read list" else here.text == "You cannot do that."


@pytest.mark.usefixtures("market")
def test_names_are_fixed_by_the_salt_and_a_share_of_the_games_keeps_its_own() -> None:
    tasks = games.tasks("market", "", "train", 6, count=60)

    def texts(salt: str, share: float) -> list[str]:
        (game,) = training_games([games.make("market")], share, salt)
        return [game.reset(task).text for task in tasks]

    plain = [games.make("market").reset(task).text for task in tasks]
    assert texts("a", 1.0) == texts("a", 1.0)
    assert not {*texts("a", 1.0)} & {*texts("b", 1.0), *plain}
    kept = sum(one == other for one, other in zip(texts("a", 0.5), plain, strict=True))
    assert 18 <= kept <= 42


@pytest.mark.usefixtures("market")
def test_a_recorded_game_is_renamed_throughout() -> None:
    game, found = games.make("market"), renamer("market", {})
    assert found is not None
    (task,) = games.tasks("market", "", "train", 6, count=1)
    gold = play(game, task, teacher("gold", game))
    gold = replace(gold, turns=tuple(replace(turn, advice=turn.action) for turn in gold.turns))
    other = found(gold, random.Random(1))
    assert found(gold, random.Random(1)) == other != found(gold, random.Random(2))
    assert [turn.reward for turn in other.turns] == [turn.reward for turn in gold.turns]
    texts = str([(turn.observation, turn.action, turn.advice) for turn in other.turns])
    assert not any(thing in texts for thing in goods())
    for turn in other.turns:
        assert turn.action == turn.advice
        assert turn.action in (turn.observation.actions or ())
    assert other.turns[1].action.removeprefix("buy ") in other.turns[1].observation.text  # it is on the list
    empty = replace(gold, turns=())
    assert found(empty, random.Random(1)) == empty


@pytest.mark.usefixtures("market")
def test_a_run_learns_from_renamed_games(tmp_path: Path) -> None:
    sizes = ["game.limit=6", "demos.games=8", "demos.replays=0", "sft.epochs=1", "ppo.iterations=1", "ppo.slots=4"]
    sizes += ["ppo.episodes_per_iteration=4", "ppo.minibatches=1", "ppo.plays_per_game=1", "ppo.dev_every=0"]
    base = ["game.name=market", "eval.games=4", "ppo.kl_coef=0", *sizes]

    def losses(name: str, *more: str) -> list[float]:
        config = load_config("toy", [*base, *more])
        run_all(config, tmp_path / name, say=Progress(quiet=True))
        return [row["loss"] for row in read_metrics(tmp_path / name, "sft") if "loss" in row]

    plain, renamed = losses("plain"), losses("renamed", "sft.rename=1", "ppo.rename=1")
    assert plain and len(plain) == len(renamed) and plain != renamed


def test_a_recorded_game_whose_names_cannot_be_drawn_keeps_them(
    market: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = market.read_text(encoding="utf-8")
    text = text.replace("        sold =", "        assert rng.random() < 0.5\n        sold =")
    market.write_text(text, encoding="utf-8")
    small = ("game.limit=6", "demos.games=8", "demos.replays=0", "sft.epochs=1")
    config = load_config("toy", ["game.name=market", "sft.rename=1", *small])
    for stage in ("demos", "sft"):
        run_stage(stage, config, tmp_path / "run", say=Progress(quiet=True))
    said = "".join(capsys.readouterr())
    found = re.search(r"(\d) games to learn from keep their names, the first because the game failed: A", said)
    assert found and 1 <= int(found[1]) <= 7


@pytest.mark.usefixtures("market")
def test_a_game_that_cannot_rename_things_is_refused() -> None:
    check_training("market", {}, 0.5)
    with pytest.raises(ConfigError, match=r"sft.rename is for .* that have a method renaming; this is toy") as caught:
        check_training("toy", {}, 0.5, stage="sft")
    assert caught.value.hint == "set sft.rename=0"
    with pytest.raises(ConfigError, match=r"ppo\.rename is for"):
        training_games([games.make("toy")], 0.5, "salt")
    with pytest.raises(ConfigError, match=r"ppo\.hidden_state is for cookingworld"):
        training_games([games.make("market")], 0.5, "salt", {})


def test_a_renaming_that_needs_an_instance_is_refused_where_it_is_asked_for(market: Path, tmp_path: Path) -> None:
    text = (
        market.read_text(encoding="utf-8")
        .replace("    @staticmethod\n", "")
        .replace("renaming(first", "renaming(self, first")
    )
    market.write_text(text, encoding="utf-8")
    for call in (lambda: check_training("market", {}, 0.5), lambda: renamer("market", {})):
        with pytest.raises(GameError, match="renaming of the game 'market' is no static method"):
            call()
    said = CliRunner().invoke(app, ["check-game", "market_package:Market", "--games", "1"])
    assert said.exit_code == 1 and "is no static method" in said.output
    small = ("game.limit=6", "demos.games=4", "demos.replays=0", "sft.epochs=1")
    config = load_config("toy", ["game.name=market", *small])
    for stage in ("demos", "sft"):
        run_stage(stage, config, tmp_path / "run", say=Progress(quiet=True))


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        (["lamp"], r"renaming gave \['lamp'\]"),
        ({"lamp": 3}, "renaming gave 3"),
        ({"lamp": ""}, "renaming gave ''"),
        ({"lamp": " wib"}, "renaming gave ' wib'"),
        ({"lamp": "wib\nsnoop"}, "renaming gave 'wib.*snoop'"),
        ({"lamp": "\ud800"}, "renaming gave "),
        ({"lamp": "wib", "key": "Wib"}, "gave the name 'Wib' to two things"),
        ({"lamp": "wib", "key": "wib"}, "gave the name 'wib' to two things"),
        ({"lamp": "wait"}, "gave the name 'wait' to 'lamp', but the game shows 'wait' already"),
        ({"lamp": "key", "key": "Take"}, "gave the name 'Take' to 'key'"),
        ({"lamp": "a"}, "gave the name 'A' to 'Lamp', but the game shows 'A' already"),
    ],
)
def test_names_with_which_a_game_cannot_be_played_are_refused(drawn: object, message: str) -> None:
    with pytest.raises(GameError, match=message):
        own_names(lambda *_: drawn, SHOWN, random.Random(0))


def test_an_exception_of_renaming_says_where_it_was() -> None:
    def renaming(first: Observation, rng: random.Random) -> dict[str, str]:
        raise KeyError("lamp")

    with pytest.raises(GameError, match=r"the game failed: KeyError: 'lamp' \(test_renaming.py:\d+\)"):
        own_names(renaming, SHOWN, random.Random(0))


def test_words_are_replaced_whole_and_the_longest_first() -> None:
    names = {"red potion": "wib", "potion": "snoop", "a.b": "moul"}
    text = "a red potion, a potion, two potions, potion-like, a.b, axb, potion."
    assert reworded(text, names) == "a wib, a snoop, two potions, potion-like, moul, axb, snoop."
    assert reworded("kept", {}) == "kept"


def test_names_may_be_exchanged_and_begin_sentences() -> None:
    found = own_names(lambda *_: {"lamp": "key", "key": "lamp", "wait": "wait"}, SHOWN, random.Random(0))
    assert found.change("Lamp and key, key and lamp. Key!", found.there) == "Key and lamp, lamp and key. Lamp!"
    assert "wait" not in found.there
    assert own_names(lambda *_: {}, SHOWN, random.Random(0)) == Names({}, reworded)


def _with(state: Any) -> random.Random:
    rng = random.Random()
    rng.setstate(state)
    return rng


def test_made_up_names_are_new_and_no_two_are_equal() -> None:
    rng = random.Random(0)
    for _ in range(50):
        things = [f"thing {number}" for number in range(40)]
        names = made_up_names(things, SHOWN, rng)
        state = rng.getstate()
        assert made_up_names({*things}, SHOWN, rng) == made_up_names(sorted(things), SHOWN, _with(state))
        assert list(names) == things and len({*names.values()}) == 40
        assert not {*names.values()} & {"a", "lamp", "take", "it", "wait"}


class _Later:
    """A game that shows a second thing later, called as the first is when renamed."""

    def reset(self, task: Task) -> Observation:
        if task.seed >= 1000:
            raise GameError("outside")
        self.left = task.limit
        return Observation("A lamp.", "Wait.", "", ("take lamp", "wait"), 0.0)

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        if self.left <= 0:
            raise GameError("over")
        self.left -= 1
        seen = Observation("A key.", "Wait.", "", ("take key", "take lamp", "wait"), 0.0)
        return seen, 0.0, None if self.left else Outcome.LIMIT

    def close(self) -> None:
        self.left = 0

    @staticmethod
    def renaming(first: Observation, rng: random.Random) -> dict[str, str]:
        return {"lamp": "key"}


def test_check_game_finds_a_name_that_another_thing_bears_later() -> None:
    with pytest.raises(GameError, match=r"renamed actions mean those that the game lists.*'take (key|lamp)'"):
        check_game(_Later, Task("later", "", "train", 3, 8))


def test_check_game_finds_names_that_differ_from_draw_to_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    count = iter(range(100))
    monkeypatch.setattr(_Later, "renaming", staticmethod(lambda first, rng: {"lamp": f"wib{next(count)}"}))
    with pytest.raises(GameError, match="renaming draws equal names from equal generators"):
        check_game(_Later, Task("later", "", "train", 3, 8))
    monkeypatch.setattr(_Later, "renaming", staticmethod(lambda first, rng: {"lamp": "wib"}))
    check_game(_Later, Task("later", "", "train", 3, 8))


def test_check_game_says_what_there_was_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task("later", "", "train", 3, 8)
    monkeypatch.setattr(_Later, "renaming", staticmethod(lambda first, rng: {}))  # leaves the episode as it is
    assert check_game(_Later, task) == Checked(gold_steps=None, renames=True)
    monkeypatch.delattr(_Later, "renaming")
    assert check_game(_Later, task) == Checked(gold_steps=None, renames=False)
    assert check_game(lambda: games.make("toy"), games.tasks("toy", count=1)[0]).gold_steps == 7


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"chest": "wib", "rope": "snoop"}, r"a thing that is renamed is shown, but neither 'rope' nor another is"),
        ({"lamp": "wib", "Key": "snoop"}, "renaming leaves no old name in what is shown, but 'key' is"),
    ],
)
def test_check_game_finds_old_names_that_stay(
    names: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Later, "renaming", staticmethod(lambda first, rng: names))
    with pytest.raises(GameError, match=message):
        check_game(_Later, Task("later", "", "train", 3, 8))


def test_check_game_draws_often_and_says_where_a_draw_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def sometimes(first: Observation, rng: random.Random) -> dict[str, str]:
        return {"lamp": "wib", "key": "snoop" if rng.random() > 0.2 else "wib"}

    monkeypatch.setattr(_Later, "renaming", staticmethod(sometimes))
    with pytest.raises(GameError, match=r"gave the name 'wib' to two things \(train seed 3, limit 8, reset\)"):
        check_game(_Later, Task("later", "", "train", 3, 8))


def test_the_engine_is_told_of_no_such_thing_for_an_old_name() -> None:
    game = RenamedOwn(_Later(), _Later.renaming, "salt", share=1.0)
    game.reset(Task("later", "", "train", 3, 8))
    assert [game.meant(f"take {thing}") for thing in ("key", "lamp", "rope")] == [
        "take lamp",
        f"take {NO_SUCH_THING}",
        "take rope",
    ]
