"""Names of games: those that ship, and those that installed packages declare."""

from __future__ import annotations

from importlib.metadata import entry_points

from grue.errors import ConfigError, did_you_mean
from grue.games.ranges import FAMILIES, NATIVE
from grue.games.textworld.folder import names_folder

GROUP = "grue.games"  # the entry points by which packages declare games
FILE_ENGINES = ("jericho", "textworld", "alfworld")


def plugin_names() -> list[str]:
    """The games that installed packages declare; sorted."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def known_games() -> list[str]:
    """The names that `make` accepts: "toy", the TextWorldExpress families, the other engines, what packages declare."""
    return ["toy", *FAMILIES, *NATIVE, *plugin_names()]


def is_known(game: str) -> bool:
    """Is `game` one of `known_games`, alone or followed by a file (jericho:zork1.z3)?"""
    return game in known_games() or is_native(game)


def ships(game: str) -> bool:
    """Does `game` come with grue?"""
    return game == "toy" or is_native(game) or game in FAMILIES


def is_native(game: str) -> bool:
    """Is it a name of NATIVE, with or without a file after a colon?"""
    if not isinstance(game, str):
        raise ConfigError(f"{game!r} is not the name of a game", hint='for example "toy" or "cookingworld"')
    return game.partition(":")[0] in NATIVE


def no_list_hint(game: str) -> str:
    """A hint for policies that choose, where `game` lists no valid actions."""
    listed = "some games list them with validActions=1 in game.params"
    own = "return them, sorted, in Observation.actions"
    return f"set policy.kind=write: the others choose among actions; {listed if ships(game) else own}"


def is_one_game(game: str) -> bool:
    """Whether all folds and seeds are the same game: one story file. Results on it say nothing about another game."""
    engine, _, file = game.partition(":")
    return bool(file) and engine in ("jericho", "textworld") and not names_folder(game)


def check_family(game: str) -> str:
    """`game` when it is one of the eight families; ConfigError otherwise."""
    if game not in FAMILIES:
        if game in known_games():
            raise ConfigError(f"{game!r} is not a TextWorldExpress game", hint="use games.make(task.game)")
        hint = did_you_mean(str(game), known_games())
        only = "check-game alone takes MODULE:CLASS, and " if ":" in str(game) else ""
        hint += f"; {only}a game of your own gets its name from its package's entry point grue.games (docs/games.md)"
        raise ConfigError(f"unknown game {game!r}", hint=hint)
    return game
