"""What programs of this folder are given: names, and settings as KEY=VALUE."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from grue.errors import GrueError


def read_arguments(
    doc: str | None, settings: Mapping[str, int | str], *, names: Collection[str] | None = ()
) -> tuple[list[str], dict[str, Any]]:
    """(the names given, all settings). --help shows `doc`, a mistake ends with a line; None as `names` allows any."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arguments", nargs="*", metavar="KEY=VALUE" if names == () else "NAME | KEY=VALUE")
    named: list[str] = []
    found: dict[str, Any] = dict(settings)
    for argument in parser.parse_args().arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            if names is not None and argument not in names:
                parser.error(f"there is no {argument!r} here" + (f": {', '.join(names)}" if names else ""))
            named.append(argument)
        elif key not in settings:
            parser.error(f"{argument}: the settings are {', '.join(settings)}")
        elif isinstance(settings[key], str):
            found[key] = value
        elif not (value.isdecimal() and int(value)):
            parser.error(f"{argument} is not a whole number from 1 up")
        else:
            found[key] = int(value)
    return named, found


def run(main: Callable[[], None]) -> None:
    """`main`, whose mistakes of the user end without a traceback, such as an extra that is not installed."""
    try:
        main()
    except GrueError as error:
        sys.exit(f"error: {error}")
