"""BabyAI's rooms mirrored and in other colours: the player is shown what such a room itself would show."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("minigrid", reason="pip install -e '.[babyai]'")

from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX

from grue import games
from grue.errors import ConfigError
from grue.games.babyai import mirror
from grue.games.babyai.game import LEVELS, BabyAIGame, _start, describe
from grue.games.babyai.mirror import RenamedRoom, can_mirror, renamed_room
from grue.games.base import fold_range
from grue.games.engine_game import State
from grue.games.play import play
from grue.games.teachers import teacher
from grue.games.training import check_training, renamer, training_games
from grue.types import Outcome, Task

BACK = {0: 2, 2: 0, 1: 1, 3: 3}  # minigrid's directions right, down, left, up, in a mirror


class Mirrored(BabyAIGame):
    """minigrid's own world in a mirror and in other colours, with the task that it then says itself."""

    names: dict[str, str]

    def _begin(self, task: Task) -> State:
        super()._begin(task)
        env, wide = self._env, self._env.grid.width
        if "left" in self.names:
            old = env.grid.copy()
            for x in range(wide):
                for y in range(env.grid.height):
                    env.grid.set(wide - 1 - x, y, old.get(x, y))
            env.agent_pos, env.agent_dir = (wide - 1 - env.agent_pos[0], env.agent_pos[1]), BACK[env.agent_dir]
        for x in range(wide):
            for y in range(env.grid.height):
                self._paint(env.grid.get(x, y), (x, y))
        self._reword(env.instrs)
        env.mission = env.instrs.surface(env)
        env.instrs.reset_verifier(env)
        return self._shown(describe(env))

    def _paint(self, cell: Any, place: tuple[int, int]) -> None:
        if cell is not None and cell.type != "wall":
            cell.color = self.names[cell.color]
            cell.init_pos = cell.cur_pos = place

    def _reword(self, part: Any) -> None:
        for name in ("instr_a", "instr_b"):
            if hasattr(part, name):
                self._reword(getattr(part, name))
        for name in ("desc", "desc_move", "desc_fixed"):
            if hasattr(part, name):
                thing = getattr(part, name)
                thing.color = self.names.get(thing.color, thing.color)
                thing.loc = self.names.get(thing.loc, thing.loc)


def train(level: int, limit: int, count: int = 1) -> list[Task]:
    return games.tasks("babyai", f"level={level}", "train", limit, count=count)


@pytest.mark.parametrize("level", [3, 5, 6, 9, 10, 12])
def test_what_is_shown_is_what_the_mirrored_world_shows(level: int) -> None:
    params = f"level={level}"
    renamed, world = RenamedRoom(BabyAIGame("babyai", params), "salt", 1.0), Mirrored("babyai", params)
    draw, sides, pairs = random.Random(level), 0, 0
    for task in train(level, 60, count=12):
        shown = renamed.reset(task)
        world.names = renamed.names.there
        sides += "left" in world.names
        assert shown == world.reset(task)
        outcome = None
        while outcome is None:
            action = draw.choice(shown.actions or ())
            shown, reward, outcome = renamed.step(action)
            assert (shown, reward, outcome) == world.step(action)
            pairs += "to the left," in shown.text
    assert 0 < sides < 12 and pairs
    renamed.close()
    world.close()


def test_a_recorded_game_is_renamed_as_a_played_one() -> None:
    game = BabyAIGame("babyai", "level=3")
    renamed, changed = RenamedRoom(game, "", 1.0), 0
    for task in train(3, 60, count=6):
        recorded = play(game, task, teacher("gold", game))
        there = renamed_room(recorded, random.Random(0))
        renamed._namer = lambda *_: lambda _: mirror._exchanged(random.Random(0))  # type: ignore[method-assign]
        shown = renamed.reset(task)
        for turn in there.turns:
            assert turn.observation == shown
            shown, _, outcome = renamed.step(turn.action)
        assert outcome is Outcome.WON
        changed += there.turns != recorded.turns
    assert changed == 6
    game.close()


def test_small_levels_keep_their_rooms() -> None:
    """In these a train game mirrored could be one of dev or test."""
    assert [level for level in range(14) if not can_mirror({"level": level})] == [0, 2, 4, 7]
    assert renamer("babyai", "level=3") is renamed_room and renamer("babyai", "level=4") is None
    check_training("babyai", "level=3", 0.5, stage="sft")
    with pytest.raises(ConfigError, match=r"sft\.rename is for .*larger levels of babyai.*this is babyai"):
        check_training("babyai", "level=4", 0.5, stage="sft")
    game = games.make("babyai", "level=4")
    with pytest.raises(ConfigError, match=r"ppo\.rename is for .*this is babyai"):
        training_games([game], 0.5, "salt")
    game.close()


def test_a_share_of_the_games_is_mirrored() -> None:
    game = games.make("babyai", "level=3")
    (seat,) = training_games([game], 0.9, "salt")
    assert isinstance(seat, RenamedRoom)
    renamed = 0
    for task in train(3, 30, count=40):
        seat.reset(task)
        renamed += bool(seat.names.there)
    assert 30 < renamed < 40
    game.close()


def canonical(level: int, seed: int) -> tuple[object, ...]:
    """A room and its task: equal for rooms that are mirrored or painted images of each other."""
    env, images = _start(LEVELS[level], seed), list[tuple[object, ...]]()
    for flip in (1, -1):
        cells, here = env.grid.encode(), np.zeros((env.grid.width, env.grid.height), dtype=bool)
        here[tuple(env.agent_pos)] = True
        cells, here = (np.rot90(one, -env.agent_dir)[:, ::flip].copy() for one in (cells, here))
        number = dict[int, int]()  # colours by their first thing: walls have one that is never exchanged
        for place in np.argwhere((cells[..., 0] >= OBJECT_TO_IDX["door"]) & (cells[..., 0] <= OBJECT_TO_IDX["box"])):
            cell = cells[tuple(place)]
            cell[1] = number.setdefault(int(cell[1]), len(number))
        names = {color: f"c{number[index]}" for color, index in COLOR_TO_IDX.items() if index in number}
        names |= {"left": "right", "right": "left"} if flip < 0 else {}
        task = " ".join(names.get(word, word) for word in env.mission.replace(",", " ,").split())
        images.append((task, cells.shape, cells.tobytes(), here.tobytes()))
    return min(images)


@pytest.mark.slow
@pytest.mark.parametrize(("level", "found"), [(0, 405), (2, 349), (4, 4), (7, 58), (1, 0), (3, 0), (5, 0), (8, 0)])
def test_no_mirrored_train_room_is_a_dev_or_test_room_where_rooms_are_mirrored(level: int, found: int) -> None:
    """`found` are the rooms of train that are, but for mirroring and colours, in dev."""
    train, dev, test = ({canonical(level, seed) for seed in fold_range(fold)} for fold in ("train", "dev", "test"))
    assert len(train & dev) == found
    assert (found == 0) == (not train & test) == can_mirror({"level": level})
