"""Play with prompts that are built anew at every step; the action is chosen among the valid ones, or written freely."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from grue.engine.engine import Engine
from grue.experiments.eval_gap.prompts import Style, prompt_ids
from grue.games import Game
from grue.games.play import Recorder
from grue.policy.decision import Decoding, Query
from grue.policy.policy import Policy
from grue.types import Episode, Outcome, Task


@dataclass(slots=True)
class Table:
    """One game being played."""

    row: int
    rng: random.Random
    recorder: Recorder
    prompt: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Answer:
    """A way to find an action."""

    act: Callable[[Engine, list[Table]], list[str]]  # the action for each table, whose `prompt` is new
    room: Callable[[Sequence[str]], int]  # tokens that it may need after a prompt, given the valid actions


def play_prompts(
    policy: Policy,
    games: Sequence[Game],
    tasks: Sequence[Task],
    style: Style,
    answer: Answer,
    *,
    context: int,
) -> list[Episode]:
    """One episode for each task, as many at once as there are games. Draws depend only on the task's place.

    Prompts that would not fit `context` lose their oldest steps.
    """
    episodes: list[Episode] = []
    for first in range(0, len(tasks), len(games)):
        part = tasks[first : first + len(games)]
        found: dict[int, Episode] = {}
        tables = []
        for row, (game, task) in enumerate(zip(games, part, strict=False)):
            recorder = Recorder(game, task, "prompt")
            if (failed := recorder.begin(task)) is not None:
                found[row] = failed
                continue
            tables.append(Table(row, random.Random(f"evaluate/{first + row}"), recorder))
        engine = Engine(policy.model.base_lm(), len(part), context)
        while tables:
            for table in tables:
                seen, limit = table.recorder.observation, table.recorder.task.limit
                past = [(turn.observation.text, turn.action) for turn in table.recorder.turns]
                fitting = style.within(context - answer.room(seen.actions or ()))
                table.prompt = prompt_ids(fitting, policy.encoder, seen.goal, limit, past, seen.text)
                engine.reset(table.row)
                if fitting.budget is not None and len(table.prompt) > fitting.budget:  # as in `Seat`: it fails alone
                    words = f"a prompt of {len(table.prompt)} tokens does not fit the {fitting.budget} left for it"
                    found[table.row] = table.recorder.end(Outcome.FAILED, words)
            tables = [table for table in tables if table.row not in found]
            if not tables:
                break
            actions = answer.act(engine, tables)
            for table, action in zip(tables, actions, strict=True):
                if (ended := table.recorder.play(action)) is not None:
                    found[table.row] = ended
            tables = [table for table in tables if table.row not in found]
        episodes += [found[row] for row in range(len(part))]
    return episodes


def choosing(policy: Policy, decoding: Decoding) -> Answer:
    """The action is one of the valid ones, as the library chooses it."""

    def act(engine: Engine, tables: list[Table]) -> list[str]:
        queries = [Query(t.row, t.recorder.observation.actions or (), len(t.prompt), t.rng, t.prompt) for t in tables]
        return [decision.action for decision in policy.act(engine, queries, decoding)]

    return Answer(act, policy.room)


def writing(policy: Policy, decoding: Decoding, *, top_k: int = 0, most: int = 15) -> Answer:
    """The action is written token by token over the whole vocabulary, up to a newline or `most` tokens.

    `top_k` keeps the k likeliest tokens of each step before one is drawn, as some libraries do by default; 0 keeps all.
    """
    encoder = policy.encoder

    @torch.inference_mode()
    def act(engine: Engine, tables: list[Table]) -> list[str]:
        written: dict[int, list[int]] = {table.row: [] for table in tables}
        waiting, news = list(tables), [table.prompt for table in tables]
        while waiting:
            hidden_BH = engine.feed([table.row for table in waiting], news)
            logits_BV = policy.model.vocabulary_logits(hidden_BH).float() / decoding.temperature
            for table, logits_V in zip(waiting, logits_BV, strict=True):
                written[table.row].append(_draw(logits_V, table.rng, top_k, greedy=decoding.greedy))
            waiting = [
                table
                for table in waiting
                if len(written[table.row]) < most and not encoder.ends(written[table.row][-1])
            ]
            news = [written[table.row][-1:] for table in waiting]
        return [encoder.text(written[table.row]) for table in tables]

    return Answer(act, lambda _: most)


def _draw(logits_V: torch.Tensor, rng: random.Random, top_k: int, *, greedy: bool) -> int:
    if greedy:
        return int(logits_V.argmax())
    if 0 < top_k < len(logits_V):
        kept, index = logits_V.topk(top_k)
        return int(index[_draw(kept, rng, 0, greedy=False)])
    cumulative = torch.softmax(logits_V.double(), -1).cumsum(-1)
    place = int(torch.searchsorted(cumulative, rng.random() * float(cumulative[-1])))
    return min(place, len(logits_V) - 1)
