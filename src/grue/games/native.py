"""Games of other engines by name: their parameters, the extra that they need, and how they are opened.

| name                                  | extra          | runs in              |
|---------------------------------------|----------------|----------------------|
| textworld, textworld-coin, ...        | [textworld]    | a process of its own |
| jericho:PATH                          | [jericho]      | a process of its own |
| scienceworld                          | [scienceworld] | a process of its own |
| babyai                                | [babyai]       | this process         |
| alfworld, alfworld:FOLDER, ...-micro  | [alfworld]     | a process of its own |
"""

from __future__ import annotations

from pathlib import Path

from grue.errors import ConfigError, needs
from grue.games.base import Game, fold_range
from grue.games.faults import Guarded
from grue.games.params import Params, parse
from grue.hardware import physical_cores
from grue.names import RUN_FOLDS

# name -> parameter -> (default, lowest, highest). A file or folder is named after the colon: "jericho:zork1.z3".
NATIVE: dict[str, dict[str, tuple[int, int, int]]] = {
    "textworld": {"rooms": (5, 1, 50), "objects": (10, 3, 100), "questLength": (5, 1, 20), "questBreadth": (1, 1, 5)},
    "textworld-coin": {"level": (5, 1, 300)},  # level 1 has no game that is new: see copies
    "textworld-treasure": {"level": (1, 1, 30)},
    "textworld-cooking": {
        "recipe": (1, 1, 5),
        "take": (1, 0, 5),
        "go": (1, 1, 12),
        "open": (0, 0, 1),
        "cook": (0, 0, 1),
        "cut": (0, 0, 1),
        "drop": (0, 0, 1),
    },
    "jericho": {"maxScore": (0, 0, 10_000), "validActions": (1, 0, 1)},
    "scienceworld": {"task": (-1, -1, 29), "easy": (0, 0, 1), "validActions": (0, 0, 1)},
    "babyai": {"level": (0, 0, 13)},
    "alfworld": {"task": (0, 0, 6)},
    "alfworld-micro": {"task": (0, 0, 6)},
}
_MODULES = {
    "textworld": "textworld",
    "jericho": "jericho",
    "scienceworld": "scienceworld",
    "babyai": "minigrid",
    "alfworld": "alfworld",
}
_FEATURES = {
    "textworld": "TextWorld",
    "jericho": "playing a Z-machine file",
    "scienceworld": "ScienceWorld",
    "babyai": "BabyAI",
    "alfworld": "ALFWorld",
}
_FILE_ENGINES = ("jericho", "textworld", "alfworld")


def is_native(game: str) -> bool:
    """True for a name that this module knows, with or without a file after a colon."""
    if not isinstance(game, str):
        raise ConfigError(f"{game!r} is not the name of a game", hint='for example "toy" or "cookingworld"')
    return game.partition(":")[0] in NATIVE


def canonical_native(game: str, params: Params = "") -> str:
    """The one spelling of `params`: the keys that were given, in the order above. ConfigError for a wrong one."""
    name, colon, path = game.partition(":")
    known = NATIVE[name]
    if colon and name not in _FILE_ENGINES:
        raise ConfigError(f"{name} takes no file, so nothing may follow its name: {game!r}", hint=f"game.name={name}")
    if colon and not path:
        raise ConfigError(f"game {game!r} names no file", hint="for example game.name=jericho:zork1.z3")
    if not colon and name == "jericho":
        raise ConfigError("jericho needs a story file", hint="for example game.name=jericho:zork1.z3")
    if colon and name == "textworld":
        known = {}
    given = parse(params)
    for key, value in given.items():
        if key not in known:
            hint = f"known are {', '.join(known)}" if known else f"{game} has no parameters"
            raise ConfigError(f"unknown parameter {key!r} of game {game!r}", hint=hint)
        _, low, high = known[key]
        if not low <= value <= high:
            raise ConfigError(f"{game}: {key}={value} is out of range", hint=f"{key} is {low} to {high}")
    _check_together(name, {key: default for key, (default, _, _) in known.items()} | given)
    return ",".join(f"{key}={given[key]}" for key in known if key in given)


def _check_together(name: str, full: dict[str, int]) -> None:
    """Raise ConfigError for values that are valid one by one but make no game together."""
    if name == "textworld-cooking" and full["take"] > full["recipe"]:
        raise ConfigError(f"{name}: take={full['take']} is more than recipe={full['recipe']}")
    if name == "textworld-cooking" and full["go"] not in (1, 6, 9, 12):
        raise ConfigError(f"{name}: there is no house of go={full['go']} rooms", hint="go is 1, 6, 9 or 12")
    if name == "textworld-coin":
        rooms = coin_rooms(full["level"])
        if rooms > 100:
            raise ConfigError(f"{name}: level={full['level']} needs {rooms} rooms", hint="100 rooms are possible")


def coin_rooms(level: int) -> int:
    """How many rooms a textworld-coin game has: the way to the coin, from level 101 on with one or two beside each."""
    return ((level - 1) // 100 + 1) * ((level - 1) % 100 + 1)


def is_one_game(game: str) -> bool:
    """Whether all folds and seeds are the same game: one story file. Results on it say nothing about another game."""
    engine, _, file = game.partition(":")
    return bool(file) and engine in ("jericho", "textworld")


def values(game: str, params: str) -> dict[str, int]:
    """Every parameter of `game`, defaults filled in."""
    known = NATIVE[game.partition(":")[0]]
    return {key: default for key, (default, _, _) in known.items()} | parse(canonical_native(game, params))


def native_seeds(game: str, params: str, fold: str) -> range:
    """The seeds of `fold` for which there is a game. Only ALFWorld's data has fewer games than a fold has seeds.

    ConfigError when that data, or the package that reads it, is missing.
    """
    seeds = fold_range(fold)
    if game.partition(":")[0] != "alfworld":
        return seeds
    from grue.games.alfworld_data import game_count

    needs("alfworld", feature=_FEATURES["alfworld"])
    return seeds[: game_count(game, params, fold)]


def make_native(game: str, params: Params = "", *, read_timeout: float = 20.0) -> Game:
    """A game by name. ConfigError for wrong parameters, a missing file, or an extra that is not installed."""
    spelled = canonical_native(game, params)
    name, _, path = game.partition(":")
    engine = name.partition("-")[0]
    needs(_MODULES[engine], feature=_FEATURES[engine])
    if game == "alfworld":
        native_seeds(game, spelled, "train")
    elif engine == "alfworld":
        _some_split(game, spelled)
    elif path and not Path(path).expanduser().is_file():
        raise ConfigError(f"there is no file {path!r}", hint="the path of a story file goes after the colon")
    elif path and engine == "textworld":
        from grue.games.textworld import check_file

        check_file(Path(path).expanduser())
    if name == "babyai":
        return Guarded(open_here(game, spelled))
    from grue.games.worker import WorkerExpertsGame, WorkerGoldGame, WorkerPlanGame, WorkerStoryGame
    from grue.games.worker_process import WorkerSettings

    kinds: dict[str, type[WorkerGoldGame]] = {
        "textworld": WorkerPlanGame,
        "alfworld": WorkerExpertsGame,
        "jericho": WorkerStoryGame,
    }
    spread = 1 if engine == "scienceworld" else physical_cores()  # its Java takes up to 1 GB per process
    settings = WorkerSettings(read_timeout=read_timeout, spread=spread)
    return kinds.get(engine, WorkerGoldGame)(game, spelled, settings=settings)


def _some_split(game: str, params: str) -> None:
    """ConfigError where a folder contains no split of ALFWorld at all."""
    missing: list[ConfigError] = []
    for fold in RUN_FOLDS:
        try:
            native_seeds(game, params, fold)
            return
        except ConfigError as error:
            missing.append(error)
    raise missing[0]


def open_here(game: str, params: str) -> Game:
    """`game` in this process. For the process that hosts it, and for tests; others use `make_native`."""
    engine = game.partition(":")[0].partition("-")[0]
    if engine == "toy":
        from grue.games.toy import ToyGame

        return ToyGame(params)
    if engine == "textworld":
        from grue.games.textworld import TextWorldGame

        return TextWorldGame(game, params)
    if engine == "jericho":
        from grue.games.jericho import JerichoGame

        return JerichoGame(game, params)
    if engine == "scienceworld":
        from grue.games.scienceworld import ScienceWorldGame

        return ScienceWorldGame(game, params)
    if engine == "alfworld":
        from grue.games.alfworld import AlfworldGame

        return AlfworldGame(game, params)
    from grue.games.babyai import BabyAIGame

    return BabyAIGame(game, params)
