"""Parameters of the games that ship, checked before an engine sees them.

TextWorldExpress itself accepts `numLocations=abc` silently and then serves an error text as an observation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from grue.errors import ConfigError

Ranges = dict[str, tuple[int, int, int]]  # parameter -> (default, lowest, highest), in the order of their spelling

FAMILIES: dict[str, Ranges] = {  # of TextWorldExpress
    "cookingworld": {
        "numLocations": (11, 1, 11),
        "numIngredients": (3, 1, 5),
        "numDistractorItems": (10, 0, 10),
        "includeDoors": (1, 0, 1),
        "limitInventorySize": (1, 0, 1),
    },
    "twc": {
        "numLocations": (3, 1, 3),
        "numItemsToPutAway": (4, 1, 4),
        "includeDoors": (0, 0, 1),
        "limitInventorySize": (0, 0, 1),
    },
    "coin": {
        "numLocations": (11, 1, 11),
        "numDistractorItems": (0, 0, 10),
        "includeDoors": (1, 0, 1),
        "limitInventorySize": (1, 0, 1),
    },
    "mapreader": {
        "numLocations": (15, 2, 48),  # the engine says 50, but has names for only 48
        "maxDistanceApart": (4, 1, 8),
        "maxDistractorItemsPerLocation": (3, 0, 3),
        "includeDoors": (0, 0, 1),
        "limitInventorySize": (0, 0, 1),
    },
    "arithmetic": {},
    "sorting": {},
    "simonsays": {
        "gameLength": (5, 1, 1000),
        "numDistractors": (3, 0, 5),
        "memorization": (0, 0, 1),
        "verbose": (0, 0, 1),
    },
    "peckingorder": {},
}

# games of other engines; a file or folder is named after the colon: "jericho:zork1.z3"
NATIVE: dict[str, Ranges] = {
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
_TOY: Ranges = {"rooms": (3, 2, 6)}
_FILE_ENGINES = ("jericho", "textworld", "alfworld")

# mapreader: maxDistanceApart -> the fewest locations among which the engine always finds that distance. With one fewer
# some seeds of train, dev and test have no game; with these all have one, whatever the other parameters.
_LOCATIONS_FOR = {1: 2, 2: 3, 3: 6, 4: 9, 5: 14, 6: 18, 7: 23, 8: 29}

Params = Mapping[str, int] | str


def check_family(game: str) -> str:
    """`game` when it is one of the eight families; ConfigError otherwise."""
    if game not in FAMILIES:
        from grue.games import known_games  # which imports this module

        if game in known_games():
            raise ConfigError(f"{game!r} is not a TextWorldExpress game", hint="use games.make(task.game)")
        hint = _nearest(str(game), known_games())
        only = "check-game alone takes MODULE:CLASS, and " if ":" in str(game) else ""
        hint += f"; {only}a game of your own gets its name from its package's entry point grue.games (docs/games.md)"
        raise ConfigError(f"unknown game {game!r}", hint=hint)
    return game


def ships(game: str) -> bool:
    """Does `game` come with grue?"""
    return game == "toy" or is_native(game) or game in FAMILIES


def is_native(game: str) -> bool:
    """Is it a name of NATIVE, with or without a file after a colon?"""
    if not isinstance(game, str):
        raise ConfigError(f"{game!r} is not the name of a game", hint='for example "toy" or "cookingworld"')
    return game.partition(":")[0] in NATIVE


def canonical(game: str, params: Params = "") -> str:
    """`params` of a game that ships as "key=value,key=value": in one order, with only the keys that were given."""
    known, given = _known(game), parse(params)
    for key, value in given.items():
        if key not in known:
            hint = _nearest(key, list(known)) if known else f"{game} has no parameters"
            raise ConfigError(f"unknown parameter {key!r} of game {game!r}", hint=hint)
        _, low, high = known[key]
        if not low <= value <= high:
            raise ConfigError(f"{game}: {key}={value} is out of range", hint=f"{key} is {low} to {high}")
    _check_together(game, _defaults(known) | given)
    return ",".join(f"{key}={given[key]}" for key in known if key in given)


def values(game: str, params: Params) -> dict[str, int]:
    """Every parameter of a game that ships, defaults filled in."""
    return _defaults(_known(game)) | parse(canonical(game, params))


def _defaults(known: Ranges) -> dict[str, int]:
    return {key: default for key, (default, _, _) in known.items()}


def _known(game: str) -> Ranges:
    """The parameters that a game has. ConfigError for one that does not exist, or whose file is missing or too much."""
    if game == "toy":
        return _TOY
    if not is_native(game):
        return FAMILIES[check_family(game)]
    name, colon, path = game.partition(":")
    if colon and name not in _FILE_ENGINES:
        raise ConfigError(f"{name} takes no file, so nothing may follow its name: {game!r}", hint=f"game.name={name}")
    if colon and not path:
        raise ConfigError(f"game {game!r} names no file", hint="for example game.name=jericho:zork1.z3")
    if not colon and name == "jericho":
        raise ConfigError("jericho needs a story file", hint="for example game.name=jericho:zork1.z3")
    return {} if colon and name == "textworld" else NATIVE[name]


def _check_together(game: str, full: dict[str, int]) -> None:
    """Raise ConfigError for values that are valid one by one but make no game together, or not with every seed."""
    if game == "mapreader":
        distance, locations = full["maxDistanceApart"], full["numLocations"]
        if locations < _LOCATIONS_FOR[distance]:
            farthest = max(apart for apart, fewest in _LOCATIONS_FOR.items() if fewest <= locations)
            raise ConfigError(
                f"{game}: numLocations={locations} is too few for maxDistanceApart={distance}",
                hint=f"maxDistanceApart={farthest} at most, or numLocations={_LOCATIONS_FOR[distance]} at least",
            )
    if game == "twc" and full["numLocations"] == 1 and full["numItemsToPutAway"] == 4:  # 1 in 8 games of dev
        raise ConfigError(
            f"{game}: one room does not always have a place for 4 items",
            hint="numItemsToPutAway=3 at most, or numLocations=2 at least",
        )
    if game == "textworld-cooking" and full["take"] > full["recipe"]:
        raise ConfigError(f"{game}: take={full['take']} is more than recipe={full['recipe']}")
    if game == "textworld-cooking" and full["go"] not in (1, 6, 9, 12):
        raise ConfigError(f"{game}: there is no house of go={full['go']} rooms", hint="go is 1, 6, 9 or 12")
    if game == "textworld-coin" and (rooms := coin_rooms(full["level"])) > 100:
        raise ConfigError(f"{game}: level={full['level']} needs {rooms} rooms", hint="level is 1 to 150 or 201 to 233")


def coin_rooms(level: int) -> int:
    """How many rooms a textworld-coin game has: the way to the coin, from level 101 on with one or two beside each."""
    return ((level - 1) // 100 + 1) * ((level - 1) % 100 + 1)


def is_one_game(game: str) -> bool:
    """Whether all folds and seeds are the same game: one story file. Results on it say nothing about another game."""
    engine, _, file = game.partition(":")
    return bool(file) and engine in ("jericho", "textworld")


def parse(params: Params) -> dict[str, int]:
    """A dict, or a text "key=value,key=value", as a dict of ints. Booleans count as 0 and 1."""
    check_form(params)
    parsed: dict[str, int] = {}
    for key, value in _pairs(params) if isinstance(params, str) else params.items():
        if not isinstance(key, str):
            raise ConfigError(f"the name of a game parameter, {key!r:.60}, is not a text", hint="for example rooms=3")
        if key in parsed:
            raise ConfigError(f"game parameter {key!r} is given twice")
        parsed[key] = _integer(key, value)
    return parsed


def check_form(params: object) -> None:
    """ConfigError for what is neither a text nor a dict."""
    if not isinstance(params, (str, Mapping)):
        raise ConfigError(
            f"game parameters {params!r} are neither a text nor a dict", hint='for example "rooms=3" or {"rooms": 3}'
        )


def _pairs(params: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, (piece.strip() for piece in params.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"cannot read game parameter {part!r}", hint="write key=value,key=value")
        yield key.strip(), value.strip()


_MOST_DIGITS = 18


def _integer(key: str, value: object) -> int:
    if isinstance(value, int):
        return int(value)
    digits = value.removeprefix("-") if isinstance(value, str) else ""
    if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS:
        return int(str(value))
    raise ConfigError(f"game parameter {key}={value!r:.60} is not a whole number", hint=f"for example {key}=1")


def _nearest(word: str, known: list[str]) -> str:
    near = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
