"""Demonstrations as a stage of a run: a teacher plays train games, some of them again with steps left out."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any

import torch

from grue.config import Config
from grue.errors import ConfigError, GameError, TeacherError
from grue.evaluate.failures import failures_of
from grue.games import Game, what_checks
from grue.games.each import play_each
from grue.games.known import no_list_hint, ships
from grue.games.omission import replay_with_omissions
from grue.games.play import Player, demo_report, play
from grue.games.teachers import GoldPruned, teacher
from grue.models.policy_model import PolicyModel
from grue.models.skeleton import skeleton
from grue.models.tokenizer import load_tokenizer
from grue.policy.policy import make_policy
from grue.policy.trie import AlikeError
from grue.prompts.tokens import Encoder
from grue.report.text import counted
from grue.rollout.seat import Seat
from grue.stages.session import FIRST_GAMES, Session
from grue.storage import episodes, jsonl
from grue.storage.run import Run
from grue.types import Episode, Observation, Task

_FEW = 0.1  # share of a teacher's steps that may be invalid without a warning


def first_errors(session: Session, fold: str, begin: Callable[[Task], object]) -> list[GameError]:
    """Why `begin` fails for each of the first games of `fold`; none if it succeeds for one of them."""
    errors: list[GameError] = []
    for task in session.tasks(fold)[:FIRST_GAMES]:
        try:
            begin(task)
        except TeacherError:
            raise
        except GameError as error:
            errors.append(error)
        else:
            return []
    return errors


def check_teacher(session: Session) -> None:
    """GameError if the teacher does not know such games, or fails at the first ones; a single one is counted later.

    ConfigError if a policy that chooses among actions would find none to choose from. Without demonstrations there is
    no teacher, but games must begin all the same.
    """
    (game,), name = session.games(1), session.config.demos.teacher
    player = teacher(name, game) if session.config.demos.games else None

    def begin(task: Task) -> None:
        first = game.reset(task)
        if player is not None:
            player.start(task, first)
        _check_listed(session, task, first)
        if player is not None:
            player.act(first)

    if errors := first_errors(session, "train", begin):
        if player is None:
            raise errors[0]
        raise GameError(
            f"the teacher {name} cannot play the first of {counted(len(errors), 'train game')}: {errors[0].message}",
            hint=errors[0].hint or "choose another demos.teacher, or other game.params",
        )


def _check_listed(session: Session, task: Task, first: Observation) -> None:
    kind = session.config.policy.kind
    if kind != "write" and not first.actions:
        raise ConfigError(
            f"{task.game} lists no valid actions, but policy.kind={kind} chooses among them",
            hint=no_list_hint(task.game),
        )


def check_first_look(session: Session) -> None:
    """ModelError if the policy could not begin a game, for example for lack of room. Reads no weights."""
    config, (game,), (task,) = session.config, session.games(1), session.tasks("train", 1)
    encoder = Encoder(load_tokenizer(config.model), config.policy)
    with torch.device("meta"):
        policy = make_policy(PolicyModel(skeleton(config.model)), encoder)
    with suppress(AlikeError):  # a game with two actions of the same tokens is counted later, as one that fails
        Seat(0, game, policy, config.policy.kind, config.model.context).start(task, random.Random(0))


def demos(session: Session) -> dict[str, Any]:
    cfg, config, say = session.config.demos, session.config, session.say
    if not cfg.games:
        say("demonstrations are skipped: demos.games=0")
        return {}
    file = session.run.episodes("demos")
    replays = session.run.episodes("replays")
    train = session.tasks("train", cfg.games)
    known = episodes.leading(episodes.read(file, missing_ok=True), train)
    if cfg.replays:  # without its replays a game counts as not recorded
        repeated = [task for task in train for _ in range(cfg.replays)]
        known = min(known, episodes.leading(episodes.read(replays, missing_ok=True), repeated) // cfg.replays)
        jsonl.keep_first(replays, known * cfg.replays)
    jsonl.keep_first(file, known)
    seats = [(game, teacher(cfg.teacher, game, config.seed)) for game in session.scripted_games()]
    record = partial(_record, config)
    with (
        say.bar("demos", len(train), done=known, unit="games") as bar,
        closing(play_each(seats, train[known:], record)) as recorded,
    ):
        for demonstration, again in recorded:
            # a game counts as recorded once its demonstration is written, so that comes last
            episodes.append(replays, again)
            episodes.append(file, [demonstration])
            bar.advance()
            session.interrupt.check()
    facts = demo_report(episodes.read(file, missing_ok=True))
    pruned = ""
    pruning = [player for _, player in seats if isinstance(player, GoldPruned)]
    if pruning and not known:  # they know only the games that they have played themselves
        facts["pruned_steps"] = sum(player.pruned_steps for player in pruning)
        pruned = f" and {facts['pruned_steps']} pruned"
    say(
        f"{cfg.teacher} won {facts['won']} of {facts['episodes']} train games within {config.game.limit} steps and "
        f"{facts['won_past_limit']} later; {facts['invalid_steps']} invalid{pruned} steps"
    )
    if facts["invalid_steps"] > _FEW * facts["steps"]:
        say.warn(
            f"{facts['invalid_steps']} of the {facts['steps']} steps of {cfg.teacher} are no listed actions: SFT does "
            "not learn them, and a policy that chooses among listed ones cannot follow it there"
        )
    if not (facts["won"] or facts["won_past_limit"]):
        more = f" in {config.demos.record_limit} steps" if facts["limit"] else ""
        say.warn(f"{cfg.teacher} won none of these games{more}: what SFT learns from them never wins")
    if facts["failed"]:
        failures = failures_of(episodes.read(file, missing_ok=True))
        if failures.all:
            raise GameError(
                f"none of {failures.games} demonstrations could be played: {failures.error}",
                hint=f"fix that{_checked(config.game.name)}, or choose another demos.teacher; then "
                f"grue demos {session.run.out} --again",
            )
        failures.warn("demos", say)
    return facts


def _record(config: Config, seat: tuple[Game, Player], task: Task) -> tuple[Episode, list[Episode]]:
    """The demonstration of a game, and its replays with steps left out."""
    (game, player), cfg = seat, config.demos
    demonstration = play(game, task, player, record_limit=cfg.record_limit)
    rng = random.Random(f"{config.seed}/replays/{task.seed}")
    again = [
        replay_with_omissions(game, demonstration, cfg.omission, rng, keep=cfg.omission_keeps)
        for _ in range(cfg.replays)
    ]
    return demonstration, again


def _checked(game: str) -> str:
    return "" if ships(game) else f" ({what_checks(game)})"


def lost_demos(run: Run) -> bool:
    """Have recorded games been deleted? The same settings record the same games again."""
    if not run.config.demos.games:
        return False
    kinds = ("demos", "replays") if run.config.demos.replays else ("demos",)
    return run.is_done("demos") and not all(run.episodes(kind).exists() for kind in kinds)


def demo_steps(session: Session) -> dict[int, int]:
    """Seed -> steps of the demonstration, for each train game that was won in its demonstration."""
    file = session.run.episodes("demos")
    return {episode.task.seed: episode.steps for episode in episodes.read(file, missing_ok=True) if episode.won}
