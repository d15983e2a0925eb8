"""Noisy gold of a second kind: gold's steps in another order, in kitchens of many sizes.

A clone of scripts in gold's order asks where in the script it is, and does the next thing of the script also when it
does not fit: it dices what it holds because dicing comes next. When the same steps come in any order that works, what
to do has to be read off the cookbook, the food at hand and what has been done. No step is ever left out, so shortcuts
are still for RL to find; steps put in between are context and not learned.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from dataclasses import replace

from grue.errors import GameError
from grue.games import tasks
from grue.games.twx.game import TwxGame
from grue.pretrain.corpus import Transcript, follow, transcribe, with_noise
from grue.types import Task

LIMIT = 90
MOVES = (4, 10, 20)  # steps that are tried at other places, one value a game
DISTANCES = (-7, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 7)
NOISE = (0.05, 0.12)  # chance of a random action before each step, one value a noisy game
MAIN, SHUFFLED, NOISY = 0.65, 0.85, 0.15  # shares of games: of the main size, shuffled, with noise
FIRST_GAME = 250_000  # layouts that the first phase has not seen
_log = logging.getLogger(__name__)


def sizes() -> list[str]:
    """Parameters of kitchens with more to cook: they hold three times the recipe lines of the main size."""
    return [
        f"numLocations={rooms},includeDoors={(rooms + foods) % 2},numDistractorItems={foods % 3 + 1},"
        f"numIngredients={foods}"
        for rooms in (1, 2, 3, 4)
        for foods in (3, 4, 5)
    ]


def record_shuffled(games: int, main: str, after: int = 0, first: int = FIRST_GAME) -> Iterator[Transcript]:
    """Up to `games` transcripts of the pretrain fold from game `first` on, all of them won; each depends on its seed
    alone. Those up to seed `after` are left out.
    """
    seats: dict[str, TwxGame] = {}
    try:
        for task in tasks("cookingworld", main, "pretrain", LIMIT, games, start=first):
            if task.seed <= after:
                continue
            rng = random.Random(task.seed)
            params = main if rng.random() < MAIN else rng.choice(sizes())
            if params not in seats:
                seats[params] = TwxGame("cookingworld", params)
            game = seats[params]
            try:
                transcript = _record(game, replace(task, params=game.params), rng)
            except GameError as error:  # the engine has no solution for a few layouts
                _log.info("left out %s: %s", task.seed, error.message)
                continue
            if transcript.won:
                yield transcript
    finally:
        for game in seats.values():
            game.close()


def _record(game: TwxGame, task: Task, rng: random.Random) -> Transcript:
    game.reset(task, gold=True)
    gold = game.gold()
    plan = [action for action, (listed, _) in zip(gold, game.rehearse(gold), strict=False) if listed]
    if rng.random() < SHUFFLED:
        plan = shuffled(game, plan, rng.choice(MOVES), rng)
    learnt = [True] * len(plan)
    if rng.random() < NOISY:
        plan, learnt = _noisy(game, task, plan, rng)
    played = transcribe(game, task, "shuffled", game.reset(task), follow(plan))
    return replace(played, valid=tuple(own and valid for own, valid in zip(learnt, played.valid, strict=False)))


def shuffled(game: TwxGame, plan: list[str], moves: int, rng: random.Random) -> list[str]:
    """`plan` with steps at other places, where every step is still listed when its turn comes and the game is won."""
    for _ in range(moves):
        place = rng.randrange(len(plan) - 2)  # the meal is prepared and eaten last
        other = min(max(0, place + rng.choice(DISTANCES)), len(plan) - 3)
        moved = plan[:place] + plan[place + 1 :]
        moved.insert(other, plan[place])
        if moved != plan and _works(game, moved):
            plan = moved
    return plan


def _works(game: TwxGame, plan: list[str]) -> bool:
    seen = game.rehearse(plan)
    return len(seen) == len(plan) and seen[-1][1] and all(listed for listed, _ in seen)


def _noisy(game: TwxGame, task: Task, plan: list[str], rng: random.Random) -> tuple[list[str], list[bool]]:
    """`plan` with random valid actions put in between, and which of the steps are the plan's own."""
    observation, listed = game.reset(task), []
    for action in plan:
        listed.append(observation.actions or (action,))
        observation, _, _ = game.step(action)
    noise = rng.choice(NOISE)
    for _ in range(4):
        noisy, own = with_noise(plan, listed, noise, rng)
        seen = game.rehearse(noisy)
        if len(seen) == len(noisy) and seen[-1][1]:
            return noisy, own
    return plan, [True] * len(plan)
