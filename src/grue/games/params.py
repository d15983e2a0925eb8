"""Parameters of the games that ship, checked before an engine sees them.

TextWorldExpress itself accepts `numLocations=abc` silently and then serves an error text as an observation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from grue.errors import ConfigError, did_you_mean
from grue.games.known import FILE_ENGINES, check_family, is_native
from grue.games.ranges import FAMILIES, NATIVE, TOY, Ranges

# mapreader: maxDistanceApart -> the fewest locations among which the engine always finds that distance. With one fewer
# some seeds of train, dev and test have no game; with these all have one, whatever the other parameters.
_LOCATIONS_FOR = {1: 2, 2: 3, 3: 6, 4: 9, 5: 14, 6: 18, 7: 23, 8: 29}

Params = Mapping[str, int] | str


def canonical(game: str, params: Params = "") -> str:
    """`params` of a game that ships as "key=value,key=value": in one order, with only the keys that were given."""
    known, given = _known(game), parse(params)
    for key, value in given.items():
        if key not in known:
            hint = did_you_mean(key, known) if known else f"{game} has no parameters"
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
        return TOY
    if not is_native(game):
        return FAMILIES[check_family(game)]
    name, colon, path = game.partition(":")
    if colon and name not in FILE_ENGINES:
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
