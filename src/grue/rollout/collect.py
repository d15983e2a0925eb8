"""Play many games at once with a language-model policy: one ragged batch, finished slots refilled at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from grue.games import Game
from grue.policy.choose import ChoosePolicy, Decision, Decoding
from grue.policy.engine import Engine
from grue.rollout.seat import Seat
from grue.types import Episode, Task

FEED_WIDTHS = (6, 24)  # rows with more new tokens are fed apart: all of a group are padded to its longest


def collect(
    policy: ChoosePolicy,
    games: Sequence[Game],
    tasks: Sequence[Task],
    decoding: Decoding,
    *,
    seed: str = "0",
    columns: int = 1024,
    player: str = "choose",
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """One episode for each task, in the order of the tasks; as many at once as there are `games`.

    `seed` and a task's place in the list fix every draw of its episode, whatever plays beside it. A game that crashes
    gives an episode with Outcome.FAILED. A history longer than `columns` tokens starts a new segment.
    """
    episodes: dict[int, Episode] = {}
    index_of: dict[int, int] = {}  # row -> index of the task played there
    queue = iter(enumerate(tasks))

    def finish(seat: Seat, episode: Episode) -> None:
        episodes[index_of[seat.row]] = episode
        if on_episode is not None:
            on_episode(episode)

    def refill(seat: Seat) -> bool:
        """Start the next task in an empty seat; False when there is none left."""
        for index, task in queue:
            index_of[seat.row] = index
            failed = seat.start(task, random.Random(f"{seed}/{index}"))
            if failed is None:
                return True
            finish(seat, failed)
        return False

    slots = min(len(games), len(tasks))
    if not slots:
        return []
    engine = policy.engine(slots, columns)
    seats = [Seat(row, game, policy.encoder, player, columns) for row, game in enumerate(games[:slots])]
    playing = [seat for seat in seats if refill(seat)]
    while playing:
        _decide(policy, engine, playing, decoding)
        for seat in playing:
            episode = seat.play()
            if episode is not None:
                finish(seat, episode)
        playing = [seat for seat in playing if seat.task is not None or refill(seat)]
    return [episodes[index] for index in range(len(tasks))]


def _decide(policy: ChoosePolicy, engine: Engine, seats: list[Seat], decoding: Decoding) -> None:
    """Give every seat a finished decision: feed what is new, then walk the tries down, one pass a branching depth."""
    groups = _by_width(seats)
    hidden_BH = torch.cat([_feed_new(engine, group) for group in groups])
    seats = [seat for group in groups for seat in group]
    decisions = []
    for seat, value in zip(seats, policy.values(hidden_BH), strict=True):
        seat.seen, seat.value = len(seat.ids), value
        seat.decision = Decision(policy.tries(seat.actions()), len(seat.ids), seat.rng)
        decisions.append(seat.decision)
    # a decision that follows a forced token first has to be fed it; the others begin at the state
    undecided = [
        (seat.row, decision) for seat, decision in zip(seats, decisions, strict=True) if not decision.follow_forced()
    ]
    at_root = [place for place, decision in enumerate(decisions) if not decision.taken]
    if at_root:
        policy.decide([decisions[place] for place in at_root], hidden_BH[at_root], decoding)
    while undecided := [(row, decision) for row, decision in undecided if not decision.follow_forced()]:
        hidden_BH = engine.feed([row for row, _ in undecided], [d.unread() for _, d in undecided])
        for _, decision in undecided:
            decision.fed = len(decision.taken)
        policy.decide([decision for _, decision in undecided], hidden_BH, decoding)


def _feed_new(engine: Engine, seats: list[Seat]) -> torch.Tensor:
    for seat in seats:
        if seat.seen == 0:
            engine.reset(seat.row)
    return engine.feed([seat.row for seat in seats], [seat.unread() for seat in seats])


def _by_width(seats: list[Seat]) -> list[list[Seat]]:
    """Groups of seats with similar numbers of new tokens: each is padded to its longest."""
    groups: dict[int, list[Seat]] = {}
    for seat in seats:
        width = len(seat.ids) - seat.seen
        groups.setdefault(sum(width > edge for edge in FEED_WIDTHS), []).append(seat)
    return list(groups.values())
