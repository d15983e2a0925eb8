"""Parameters of the eight TextWorldExpress families, checked before Java sees them.

The engine itself accepts `numLocations=abc` silently and then serves an error text as an observation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from grue.errors import ConfigError

# family -> parameter -> (default, lowest, highest), in the engine's own order
FAMILIES: dict[str, dict[str, tuple[int, int, int]]] = {
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
        if ":" in str(game):
            hint += "; a class of your own gets a name from the entry point grue.games in its package"
        raise ConfigError(f"unknown game {game!r}", hint=hint)
    return game


def canonical(game: str, params: Params = "") -> str:
    """`params` as "key=value,key=value" in the engine's order, with only the keys that were given."""
    known = FAMILIES[check_family(game)]
    given = parse(params)
    for key, value in given.items():
        if key not in known:
            hint = _nearest(key, list(known)) if known else f"{game} has no parameters"
            raise ConfigError(f"unknown parameter {key!r} of game {game!r}", hint=hint)
        _, low, high = known[key]
        if not low <= value <= high:
            raise ConfigError(f"{game}: {key}={value} is out of range", hint=f"{key} is {low} to {high}")
    _check_together(game, {key: default for key, (default, _, _) in known.items()} | given)
    return ",".join(f"{key}={given[key]}" for key in known if key in given)


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


def parse(params: Params) -> dict[str, int]:
    """A dict, or a text "key=value,key=value", as a dict of ints. Booleans count as 0 and 1."""
    check_form(params)
    parsed: dict[str, int] = {}
    for key, value in _pairs(params) if isinstance(params, str) else params.items():
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
