"""Gold play of the other families of TextWorldExpress, so that the base knows the texts and actions of each.

Sorting has the largest part: numbers are compared nowhere else, and learning that takes thousands of games.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from grue.errors import GameError
from grue.games import tasks
from grue.games.twx.game import TwxGame
from grue.games.twx.words import LARGEST
from grue.pretrain.corpus import Recording, Transcript, follow, transcribe

LIMIT = 40
NUMBERS = tuple(str(number) for number in range(1, LARGEST + 1))  # the quantities of sorting: one token each

# family: (share of the games, its sizes)
FAMILIES: dict[str, tuple[float, tuple[str, ...]]] = {
    "sorting": (0.4, ("",)),
    "arithmetic": (0.1, ("",)),
    "peckingorder": (0.1, ("",)),
    "simonsays": (
        0.12,
        ("gameLength=5,numDistractors=3", "gameLength=5,numDistractors=3,memorization=1,verbose=0"),
    ),
    "coin": (0.08, tuple(f"numLocations={rooms},numDistractorItems=0,includeDoors=1" for rooms in (3, 5, 7))),
    "mapreader": (
        0.1,
        tuple(f"numLocations={rooms},maxDistanceApart=3,maxDistractorItemsPerLocation=1" for rooms in (6, 8, 10)),
    ),
    "twc": (0.1, ("numLocations=1,numItemsToPutAway=1", "numLocations=1,numItemsToPutAway=2")),
}


def record_families(games: int, recording: Recording) -> list[Transcript]:
    """About `games` transcripts of the pretrain fold, a corpus for each family and size."""
    transcripts: list[Transcript] = []
    for family, (share, sizes) in FAMILIES.items():
        for number, params in enumerate(sizes, 1):
            part = max(1, round(games * share / len(sizes)))
            transcripts += recording.of(f"{family}-{number}", part, partial(_record, family, params, part))
    return transcripts


def _record(family: str, params: str, games: int, after: int) -> Iterator[Transcript]:
    game = TwxGame(family, params)
    try:
        for task in tasks(family, params, "pretrain", LIMIT, games):
            if task.seed <= after:
                continue
            try:
                first = game.reset(task, gold=True)
            except GameError:  # the engine has no solution for a few layouts
                continue
            gold = game.gold()
            played = transcribe(game, task, "gold", game.reset(task), follow(gold))
            yield replace(played, game=family, listed=first.actions or ())
    finally:
        game.close()
