"""What can be read from the memory of any Z-machine game: score, moves, and what changed in its world.

Layout: "The Z-Machine Standards Document" 1.1, sections 6.2 (globals), 8.2.3 (status line), 11 (header), 12 (objects).
Memory is the dynamic part, as unsigned bytes; words are big-endian.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

_VERSION, _FLAGS_1, _OBJECTS, _GLOBALS = 0x00, 0x01, 0x0A, 0x0C  # addresses in the header
_TIME_GAME = 0x02  # flag of version 3: the status line shows a time


class Layout(NamedTuple):
    """Where the object table of a story lies."""

    first: int  # address of object 1
    size: int  # bytes of an entry
    things: int  # how many entries
    parent: int  # offset of the parent's number in an entry; attributes come before it
    parent_size: int


def word(memory: np.ndarray, address: int) -> int:
    return int(memory[address]) << 8 | int(memory[address + 1])


def points_and_moves(memory: np.ndarray) -> tuple[int, int] | None:
    """(score, moves) as the status line of versions 1 to 3 shows them; None for later versions and for time games.

    Exact after every move: globals 1 and 2 are what the interpreter prints. (The printed line lags by one turn.)
    """
    if memory[_VERSION] > 3 or (memory[_VERSION] == 3 and memory[_FLAGS_1] & _TIME_GAME):
        return None
    globals_at = word(memory, _GLOBALS)
    points, moves = word(memory, globals_at + 2), word(memory, globals_at + 4)
    return (points - 0x10000 if points & 0x8000 else points), moves


def layout(memory: np.ndarray) -> Layout:
    """The object table: it ends where the first property table begins."""
    early = memory[_VERSION] <= 3
    defaults, size, properties = (31, 9, 7) if early else (63, 14, 12)
    first = word(memory, _OBJECTS) + 2 * defaults
    end, count = len(memory), 0
    while first + (count + 1) * size <= end:
        table = word(memory, first + count * size + properties)
        if table <= first:  # not an object any more
            break
        end = min(end, table)
        count += 1
    return Layout(first, size, count, 4 if early else 6, 1 if early else 2)


def world(memory: np.ndarray, where: Layout) -> bytes:
    """The attributes and the parent of every object: equal exactly when no thing moved, opened, lit, ..."""
    table = memory[where.first : where.first + where.size * where.things].reshape(where.things, where.size)
    return bytes(table[:, : where.parent + where.parent_size].tobytes())
