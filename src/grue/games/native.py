"""Games of other engines by name: the extra that they need, and how they are opened.

| name                                  | extra          | runs in              |
|---------------------------------------|----------------|----------------------|
| textworld, textworld-coin, ...        | [textworld]    | a process of its own |
| textworld:PATH (a file, or a folder)  | [textworld]    | a process of its own |
| jericho:PATH                          | [jericho]      | a process of its own |
| scienceworld                          | [scienceworld] | a process of its own |
| babyai                                | [babyai]       | this process         |
| alfworld, alfworld:FOLDER, ...-micro  | [alfworld]     | a process of its own |
"""

from __future__ import annotations

from pathlib import Path

from grue.errors import ConfigError, needs
from grue.games.base import Game, fold_range, own_path
from grue.games.faults import Guarded
from grue.games.known import is_native
from grue.games.params import Params, canonical
from grue.games.textworld.folder import names_folder, story_count
from grue.hardware import memory_gib, physical_cores
from grue.launch import processes_here
from grue.names import RUN_FOLDS

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
_JAVA_GIB = 8  # of the machine's memory for each process of ScienceWorld, whose Java takes up to 1


def check_engine(game: str) -> None:
    """ConfigError naming the extra to install if `game` needs one that is missing."""
    if is_native(game):
        engine = game.partition(":")[0].partition("-")[0]
        needs(_MODULES[engine], feature=_FEATURES[engine])


def native_seeds(game: str, params: str, fold: str) -> range:
    """The seeds of `fold` for which there is a game: ALFWorld's data, and a folder of TextWorld games, may have few.

    ConfigError when these, or the package that reads them, are missing.
    """
    seeds = fold_range(fold)
    if game.partition(":")[0] == "alfworld":
        from grue.games.alfworld.data import game_count

        check_engine(game)
        return seeds[: game_count(game, params, fold)]
    return seeds[: story_count(game, fold)] if names_folder(game) else seeds


def games_at_once(game: str) -> int:
    """How many games of this name keep all cores busy; 1 where games do not compute at the same time."""
    from grue.games.worker.process import SHARED

    processes = _processes(game)
    return SHARED * processes if processes > 1 else 1


def _processes(game: str) -> int:
    """Over how many processes games are spread."""
    if not is_native(game) or game == "babyai":
        return 1
    cores = physical_cores()
    most = min(cores, int(memory_gib() // _JAVA_GIB)) if game == "scienceworld" else cores
    return max(1, most // processes_here())


def make_native(game: str, params: Params = "", *, read_timeout_s: float = 20.0) -> Game:
    """A game by name. ConfigError for wrong parameters, a missing file, or an extra that is not installed."""
    spelled = canonical(game, params)
    name, _, path = game.partition(":")
    engine = name.partition("-")[0]
    check_engine(game)
    if game == "alfworld":
        native_seeds(game, spelled, "train")
    elif engine == "alfworld" or names_folder(game):
        _some_split(game, spelled)
    elif path:
        _check_story(engine, own_path(game))
    if name == "babyai":
        return Guarded(open_here(game, spelled))
    from grue.games.worker.game import WorkerExpertsGame, WorkerGoldGame, WorkerPlanGame, WorkerStoryGame
    from grue.games.worker.process import WorkerSettings

    kinds: dict[str, type[WorkerGoldGame]] = {
        "textworld": WorkerPlanGame,
        "alfworld": WorkerExpertsGame,
        "jericho": WorkerStoryGame,
        "scienceworld": WorkerStoryGame,
    }
    settings = WorkerSettings(read_timeout_s=read_timeout_s, spread=_processes(game))
    return kinds.get(engine, WorkerGoldGame)(game, spelled, settings=settings)


def _check_story(engine: str, file: Path) -> None:
    """ConfigError or GameError where there is no such file, or it is none of TextWorld's."""
    if file.is_dir():
        hint = "give it a name that does not end like a story's" if engine == "textworld" else "name a file in it"
        raise ConfigError(f"{str(file)!r} is a folder, and a story file goes after the colon", hint=hint)
    if not file.is_file():
        hint = "the path of a story file goes after the colon"
        if not file.is_absolute():
            hint += f"; a relative one is looked for in the current folder, {Path.cwd()}"
        raise ConfigError(f"there is no file {str(file)!r}", hint=hint)
    if engine == "textworld":
        from grue.games.textworld.game import check_file

        check_file(file)


def _some_split(game: str, params: str) -> None:
    """ConfigError where a folder contains no games for any fold."""
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
        from grue.games.textworld.game import TextWorldGame

        return TextWorldGame(game, params)
    if engine == "jericho":
        from grue.games.jericho.game import JerichoGame

        return JerichoGame(game, params)
    if engine == "scienceworld":
        from grue.games.scienceworld import ScienceWorldGame

        return ScienceWorldGame(game, params)
    if engine == "alfworld":
        from grue.games.alfworld.game import AlfworldGame

        return AlfworldGame(game, params)
    from grue.games.babyai.game import BabyAIGame

    return BabyAIGame(game, params)
