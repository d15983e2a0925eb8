"""Tables: the games that ship, and the parameters of each with their ranges."""

from __future__ import annotations

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
TOY: Ranges = {"rooms": (3, 2, 6)}
