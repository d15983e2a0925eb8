"""One played episode for people: what the model saw, what it weighed, what the critic expected."""

from __future__ import annotations

import time
from itertools import groupby
from typing import TYPE_CHECKING

from grue.evaluate.evaluate import evaluate
from grue.evaluate.probe import PROBE_TEMPERATURE
from grue.policy.decision import Decoding
from grue.policy.policy import Policy, make_policy
from grue.policy.weigh import CachedText
from grue.prompts.tokens import Encoder
from grue.prompts.transcript import render_task, tidy
from grue.report.shown import ShownEpisode, ShownTurn, append_shown, from_episode, readable
from grue.report.text import short_percent
from grue.stages.trained import keep_probe
from grue.storage import jsonl
from grue.types import Episode, Task

if TYPE_CHECKING:
    from grue.progress import Progress
    from grue.stages.session import Session

_SAME = "(the same text)"


def shown_episode(session: Session, name: str, title: str, task: Task, *, greedy: bool = True) -> ShownEpisode:
    """Play `task` with the current weights of the session's model."""
    return play_and_show(session, session.policy(), name, title, task, greedy=greedy)[0]


def play_and_show(
    session: Session, policy: Policy, name: str, title: str, task: Task, *, greedy: bool = True
) -> tuple[ShownEpisode, Episode]:
    """The same with a given `policy`, called `name`; also returns the episode with its ids and log-probabilities."""
    temperature = PROBE_TEMPERATURE if greedy else session.config.sampling_temperature
    decoding = Decoding(greedy, temperature)
    context = session.config.model.context
    (episode,) = evaluate(policy, session.games(1), [task], decoding, context=context, player=name)
    text = CachedText(policy.model)
    goal = episode.turns[0].observation.goal if episode.turns else ""
    shown = from_episode(
        episode,
        policy=name,
        decoding="greedy" if greedy else "sampled",
        title=title,
        task_text=tidy(render_task(goal, task.limit)),
        observations=[tidy(turn.observation.text) for turn in episode.turns],
        valued=name == "ppo",  # no critic has learnt anything before
        tokens=token_roles(episode, policy),
        considered=[
            policy.weigh(turn, episode.segments[turn.segment].ids, decoding.temperature, text) for turn in episode.turns
        ],
    )
    return shown, episode


def token_roles(episode: Episode, policy: Policy) -> list[tuple[str, str]]:
    """Each piece of the last segment with its role: read, forced, or decided at a branch (these are trained)."""
    if not episode.segments:
        return []
    ids, last = episode.segments[-1].ids, len(episode.segments) - 1
    roles = ["read"] * len(ids)
    for turn in (turn for turn in episode.turns if turn.segment == last):
        start = turn.state_position + 1
        end = start + turn.thought_ids + (len(policy.encoder.action(turn.action)) if policy.needs_actions else 0)
        roles[start:end] = ["forced"] * (end - start)
        for branch in turn.branches:
            decided = len(turn.candidates[branch.chosen].ids) if turn.candidates else 1
            first = branch.position + 1
            roles[first : first + decided] = ["branch"] * decided
    return [(str(policy.encoder.tokenizer.decode([token])), role) for token, role in zip(ids, roles, strict=True)]


def print_episode(say: Progress, shown: ShownEpisode, *, delay_s: float = 0.0) -> None:
    """Print the episode in the terminal: observations, actions, and what was weighed."""
    say(
        f"--- {shown.title}: {shown.task.game} {shown.task.fold} {shown.task.seed} ({shown.policy}, {shown.decoding})",
        style="bold",
    )
    say(shown.task_text, style="dim", wrap=True)
    before = ""
    for _, alike in groupby(enumerate(shown.turns, 1), key=lambda place: _done(place[1])):
        (number, turn), *again = alike
        _print_text(say, turn.observation, before)
        before = turn.observation
        weighed = "  ".join(
            f"{readable(action)} {short_percent(probability)}" for action, probability in turn.weighed(3)
        )
        value = "" if turn.value is None else f"  (critic {turn.value:z.2f})"
        value += "  (chosen token by token)" if shown.decoding == "greedy" and turn.has_likelier else ""
        gained = f"  {turn.reward:+.2f}" if turn.reward else ""
        gained += "" if turn.valid else "  (invalid)"
        style = "bold green" if turn.reward > 0 else "bold red" if turn.reward < 0 else "bold"
        if turn.thought:
            say(f"     Thought: {turn.thought}", style="italic", wrap=True)
        say(f"{number:>3}> {readable(turn.action)}{gained}", style=style)
        say(f"     {weighed}{value}", style="dim")
        if again:  # an untrained policy may do one thing all the time
            last = f"-{again[-1][0]}" if len(again) > 1 else ""
            say(f"{number + 1:>3}{last}> {readable(turn.action)}  (the same again)", style="dim")
        time.sleep(delay_s)
    _print_text(say, tidy(shown.final), before)
    say(f"--- {shown.outcome}, score {shown.score:.2f}, {len(shown.turns)} steps", style="bold")


def _done(turn: ShownTurn) -> tuple[object, ...]:
    """Equal for turns in which the same was seen, done and gained."""
    return turn.observation, turn.action, turn.reward, turn.valid, turn.thought


def _print_text(say: Progress, text: str, before: str) -> None:
    """A long text that is the one `before` is not printed again."""
    same = text == before and len(text) > len(_SAME)
    say(_SAME if same else text, style="dim" if same else "", wrap=True)


def _played_in_full(session: Session, policy: Policy, name: str, task: Task) -> Episode:
    """The same greedy game without min-p: a confident policy would keep one action, which leaves nothing to compare."""
    prompt = session.config.policy.model_copy(update={"min_p": 0.0})
    weighs_all = make_policy(policy.model, Encoder(session.encoder.tokenizer, prompt))
    decoding, context = Decoding(True, PROBE_TEMPERATURE), session.config.model.context
    (episode,) = evaluate(weighs_all, session.games(1), [task], decoding, context=context, player=name)
    return episode


def keep_shown(session: Session, name: str, title: str) -> None:
    """Play one dev game, print it, and keep it for the report."""
    if not (session.run.leads or session.model.playing):
        return
    policy = session.policy()  # all processes put sharded weights together, and one plays
    if not session.run.leads:
        return
    (task,) = session.tasks("dev", 1)
    shown, played = play_and_show(session, policy, name, title, task)
    if session.config.policy.kind == "aligned":  # the game with which copies are checked later must hold decisions
        played = _played_in_full(session, policy, name, task)
    keep_probe(session.run.out, name, played)
    file = session.run.episodes("shown")
    jsonl.keep(file, lambda row: row.get("title") != title)  # what a stage that started over showed before
    append_shown(file, shown)
    print_episode(session.say, shown)
