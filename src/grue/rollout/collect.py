"""Play many games at once with a language-model policy: one ragged batch, finished slots refilled at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from grue.engine.engine import Engine
from grue.errors import ConfigError, ModelError
from grue.games import Game, begin_reset
from grue.games.teachers import Adviser, teacher
from grue.parallel import ALONE, Processes
from grue.policy.decision import Decoding
from grue.policy.policy import Policy, decide
from grue.rollout.seat import Seat
from grue.types import Episode, Task


def collect(
    policy: Policy,
    games: Sequence[Game],
    tasks: Sequence[Task],
    decoding: Decoding,
    *,
    seed: str,
    context: int = 1024,
    player: str = "",
    on_episode: Callable[[Episode], None] | None = None,
    processes: Processes = ALONE,
    adviser: str = "",
    values_limit: bool = False,
) -> list[Episode]:
    """One episode for each task, in the order of the tasks; as many at once as there are `games`.

    `seed` and a task's place in the list fix every draw of its episode, whatever else is played, so each iteration of a
    training needs a seed of its own. Episodes call the policy `player`, by default its encoder's kind. A game that
    crashes, or that the policy cannot read, gives an episode with Outcome.FAILED; ModelError if none could even be
    begun (with several processes SharedError), since then the settings are wrong. A history longer than `context`
    tokens starts a new segment.
    With several `processes` each of them plays a part, and all of them get all episodes. The teacher called `adviser`
    is asked at each turn what it would do (`Turn.advice`). With `values_limit` the critic also reads what a game at
    its limit showed last (`Episode.last_value`).
    """

    _check_given(policy, games, tasks, decoding)
    if len({id(game) for game in games}) < len(games):
        raise ConfigError(
            "the same game object was given twice", hint="make one for each: [make(name) for _ in range(8)]"
        )

    def seat(row: int, game: Game) -> Seat:
        asked = Adviser(teacher(adviser, game)) if adviser else None
        return Seat(row, game, policy, player or policy.encoder.prompt.kind, context, asked, values_limit)

    def play(part: Sequence[Task], places: Sequence[int]) -> list[Episode]:
        seats = [seat(row, game) for row, game in enumerate(games[: len(part)])]
        if part and not seats:
            raise ConfigError(f"there is no game to play {len(part)} tasks in", hint="make at least one")
        tell = on_episode or (lambda _: None)
        episodes, unreadable = (
            _collect_here(policy, seats, part, places, decoding, seed, context, tell) if part else ({}, {})
        )
        _check_begun([error for _, error in unreadable.values()], len(tasks), processes)
        for index, (episode, _) in unreadable.items():
            episodes[index] = episode
            tell(episode)
        return [episodes[index] for index in range(len(part))]

    return processes.all_of(tasks, play)


def _check_given(policy: object, games: object, tasks: object, decoding: object) -> None:
    """ConfigError for arguments that are easily confused."""
    if not all(hasattr(policy, part) for part in ("model", "encoder", "room", "act", "needs_actions")):
        inside = hasattr(getattr(policy, "policy", None), "room")
        raise ConfigError(
            f"a policy is what load_policy and make_policy give, not {type(policy).__name__}",
            hint="of what load_policy gives, policy.policy plays many games"
            if inside
            else "for any other player: [play(game, task, player) for task in tasks], then summarise (docs/python.md)",
        )
    # a wrapper that forwards `close` is no Game to isinstance from Python 3.12 on, and plays all the same
    if not isinstance(games, Sequence) or not all(_plays(game) for game in games):
        hint = "[game] plays one at a time" if _plays(games) else '[make("toy") for _ in range(8)] makes one'
        raise ConfigError(f"games={games!r} is not a list of games", hint=hint)
    if not isinstance(tasks, Sequence) or not all(isinstance(task, Task) for task in tasks):
        raise ConfigError("tasks is not a list of tasks", hint='tasks("toy", fold="dev", limit=16, count=24) makes one')
    if not isinstance(decoding, Decoding):
        raise ConfigError(
            f"{decoding!r} is no Decoding",
            hint="Decoding(greedy=True), or Decoding(temperature=1.0) to sample",
        )


def _plays(game: object) -> bool:
    return all(callable(getattr(game, name, None)) for name in ("reset", "step", "close"))


def _check_begun(errors: Sequence[ModelError], tasks: int, processes: Processes) -> None:
    """Raise the first of the `errors` of all processes if there are as many as tasks.

    Not one of these is recorded, so the same command finds the error again.
    """
    if processes.total({"unreadable": len(errors)})["unreadable"] == tasks:
        with processes.together():
            if errors:
                raise errors[0]


def _collect_here(
    policy: Policy,
    seats: Sequence[Seat],
    tasks: Sequence[Task],
    places: Sequence[int],
    decoding: Decoding,
    seed: str,
    context: int,
    tell: Callable[[Episode], None],
) -> tuple[dict[int, Episode], dict[int, tuple[Episode, ModelError]]]:
    """`collect` in this process: index -> episode, and index -> (episode, error) of a game that could not be begun.

    `places` are the indices of `tasks` in the whole list. The episodes of the latter are not told.
    """
    episodes: dict[int, Episode] = {}
    index_of: dict[int, int] = {}  # row -> index of the task played there
    unreadable: dict[int, tuple[Episode, ModelError]] = {}
    queue = iter(enumerate(tasks))

    def finish(index: int, episode: Episode) -> None:
        episodes[index] = episode
        tell(episode)

    def refill(empty: Sequence[Seat]) -> None:
        """Start the next tasks in empty seats, as long as there are any."""
        # seats come first in the zip: once they run out, no further task is taken from the queue
        while begun := [(seat, index, task) for seat, (index, task) in zip(empty, queue, strict=False)]:
            for seat, _, task in begun:
                begin_reset(seat.game, task)
            empty = []  # those whose task cannot be played
            for seat, index, task in begun:
                index_of[seat.row] = index
                try:
                    failed = seat.start(task, random.Random(f"{seed}/{places[index]}"))
                except ModelError as error:
                    unreadable[index] = seat.give_up(error), error
                else:
                    if failed is None:
                        continue
                    finish(index, failed)
                empty.append(seat)

    policy.model.eval()  # a loop of one's own may have left dropout on
    engine = Engine(policy.model.base_lm(), len(seats), context)
    refill(seats)
    playing = [seat for seat in seats if seat.task is not None]
    while playing:
        _decide(policy, engine, playing, decoding)
        for seat in playing:
            seat.begin()
        for seat in playing:
            episode = seat.play()
            if episode is not None:
                finish(index_of[seat.row], episode)
        if ended := [seat for seat in playing if seat.at_limit]:
            for seat, value in zip(ended, policy.model.values(_read(engine, ended)), strict=True):
                finish(index_of[seat.row], seat.close(value))
        refill([seat for seat in playing if seat.task is None])
        playing = [seat for seat in playing if seat.task is not None]
    return episodes, unreadable


def _decide(policy: Policy, engine: Engine, seats: list[Seat], decoding: Decoding) -> None:
    """Give every seat a decision, with the critic's value."""
    _forget(engine, seats)
    decisions = decide(policy, engine, [seat.query() for seat in seats], decoding)
    for seat, decision in zip(seats, decisions, strict=True):
        seat.decision = decision


def _read(engine: Engine, seats: list[Seat]) -> torch.Tensor:
    """Feed what is new in every seat, without deciding. Returns the hidden state (B, H) of the last token of each."""
    _forget(engine, seats)
    return engine.feed([seat.row for seat in seats], [seat.unread() for seat in seats])


def _forget(engine: Engine, seats: list[Seat]) -> None:
    """Clear the cache rows of seats that have just begun a new segment."""
    for seat in seats:
        if seat.is_new:
            engine.reset(seat.row)
