"""Games that failed: they are left out of every mean, so they are counted and said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from grue.progress import Progress
from grue.types import Episode


@dataclass(slots=True)
class Failures:
    """How many of the games that were played failed, and why the first of them did."""

    games: int = 0
    failed: int = 0
    error: str = ""

    def add(self, episodes: Iterable[Episode]) -> None:
        for episode in episodes:
            self.games += 1
            if episode.failed:
                self.error = self.error if self.failed else episode.error
                self.failed += 1

    @property
    def all(self) -> bool:
        """Did no game come to its end, though some were played?"""
        return 0 < self.games == self.failed

    def warn(self, where: str, say: Progress) -> None:
        if self.failed:
            say.warn(f"{self.failed} of {self.games} games failed in {where}, the first with: {self.error}")


def failures_of(episodes: Iterable[Episode]) -> Failures:
    found = Failures()
    found.add(episodes)
    return found


@contextmanager
def failures_told(where: str, say: Progress) -> Iterator[Failures]:
    """What is added within is said in one warning at the end, also of a stage that is interrupted."""
    found = Failures()
    try:
        yield found
    finally:
        found.warn(where, say)
