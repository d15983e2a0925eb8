"""Played episodes: what the model read, what it weighed, what it did, and what the critic expected."""

from __future__ import annotations

from grue.report.markup import Child, Html, join, tag
from grue.report.metrics import POLICY_ORDER, policy_rank, policy_title
from grue.report.shown import ShownEpisode, ShownTurn, readable
from grue.report.svg import trace
from grue.report.text import fixed, number, percent, redact, short_percent, signed

_OUTCOME_WORDS = {"won": "won", "lost": "lost", "limit": "ran out of steps", "failed": "game crashed"}
_ROLES = {
    "read": "the task and the observations: read, never trained on as actions",
    "forced": "written without a choice: no other token, or action, was possible or likely enough to be weighed",
    "branch": "chosen among several, as a token or as part of a whole action: this is where the policy learns",
}


def played_section(episodes: list[ShownEpisode]) -> Html:
    if not episodes:
        note = tag("p", "No played game has been kept yet.", class_="absent")
        return tag("section", tag("h2", "Games as they were played"), note, id="games")
    lead = (
        "The text is what the policy was given. Bars show the probability of each action it weighed; the filled one"
        " was played. “Value” is the critic's estimate, before the action, of the discounted rewards still to come, as"
        " PPO counts them: a bonus for winning included (ppo.win_bonus), divided where ppo.normalise_rewards is set."
    )
    best = max(episodes, key=lambda episode: policy_rank(episode.policy)[0] % len(POLICY_ORDER))
    return tag(
        "section",
        tag("h2", "Games as they were played"),
        tag("p", lead, class_="caption"),
        *(_episode(episode, opened=episode is best) for episode in episodes),
        id="games",
    )


def _episode(episode: ShownEpisode, *, opened: bool) -> Html:
    task = episode.task
    outcome = episode.outcome if episode.outcome in _OUTCOME_WORDS else "unknown"
    words = _OUTCOME_WORDS.get(outcome, "outcome unknown")
    if outcome == "limit" and episode.steps < task.limit:  # a replay of a demonstration, cut short
        words = "stopped early"
    title = (
        tag("span", policy_title(episode.policy), class_="who"),
        tag("span", episode.decoding, class_="how"),
        tag("span", episode.title, class_="what") if episode.title else None,
    )
    result = (
        tag("span", words, class_=f"outcome {outcome}"),
        tag("span", f"score {episode.score:.2f}, {episode.steps:,} steps", class_="how"),
    )
    summary = tag("summary", join([tag("h3", join(title, " ")), *result], " "))
    facts = [redact(task.game), f"{task.fold} seed {task.seed}" if task.fold else ""]
    facts += [
        f"at most {task.limit} steps" if episode.steps <= task.limit > 0 else "",
        task.params.replace(",", ", "),
    ]
    return tag(
        "details",
        summary,
        tag("p", " · ".join(fact for fact in facts if fact), class_="facts"),
        tag("p", episode.task_text, class_="game task") if episode.task_text else None,
        _trace(episode),
        tag("ol", *(_turn(turn, greedy=episode.decoding == "greedy") for turn in episode.turns), class_="turns"),
        tag("p", f"{episode.more_turns:,} more steps are not shown.", class_="caption") if episode.more_turns else None,
        tag("p", redact(episode.final), class_="game final") if episode.final else None,
        _tokens(episode),
        open=opened,
        class_="episode",
    )


def _trace(episode: ShownEpisode) -> Html | None:
    values = [turn.value for turn in episode.turns]
    known = [value for value in values if value is not None]
    if not known:
        return None
    label = f"Critic's value by turn, from {known[0]:.2f} to {known[-1]:.2f}"
    drawing = trace(values, [turn.reward for turn in episode.turns], label)
    if drawing is None:
        return None
    caption = "The critic's value at each turn (line) and the game's rewards (bars); the grey lines are 0 and 1."
    return tag("figure", drawing, tag("figcaption", caption), class_="traced")


def _turn(turn: ShownTurn, *, greedy: bool) -> Html:
    numbers: list[Child] = []
    if turn.value is not None:
        numbers.append(tag("span", "value ", tag("b", _two(turn.value))))
    if turn.reward:
        kind = "gain" if turn.reward > 0 else "loss"
        numbers.append(tag("span", "reward ", tag("b", signed(turn.reward, 2)), class_=kind))
    if not turn.valid:
        numbers.append(tag("span", "invalid", class_="loss"))
    if turn.log_prob is not None:
        numbers.append(tag("span", "probability ", tag("b", percent(turn.probability))))
    if greedy and turn.has_likelier:
        numbers.append(tag("span", "chosen token by token"))
    left = tag(
        "div",
        tag("p", turn.observation, class_="game"),
        tag("p", tag("span", "Thought: ", class_="prompt"), turn.thought, class_="game") if turn.thought else None,
        tag("p", tag("span", "> ", class_="prompt"), tag("b", readable(turn.action)), class_="game action"),
        tag("p", join(numbers, " "), class_="numbers") if numbers else None,
    )
    return tag("li", left, _bars(turn), class_="turn" if turn.considered else "turn plain")


def _bars(turn: ShownTurn) -> Html | None:
    weighed = turn.weighed()
    if not weighed:
        return None
    lines = [_bar(action, probability, chosen=action == turn.action) for action, probability in weighed]
    rest = 1.0 - sum(probability or 0.0 for _, probability in weighed)
    if rest > 0.005:
        words = tag("span", "all other actions", class_="label"), tag("span", short_percent(rest), class_="share")
        lines.append(tag("li", *words, class_="rest"))
    return tag("ul", *lines, class_="bars", aria_label="Actions that were weighed")


def _bar(action: str, probability: float | None, *, chosen: bool) -> Html:
    width = 0.0 if probability is None else 100 * min(max(probability, 0.0), 1.0)
    return tag(
        "li",
        tag("span", style=f"width:{width:.1f}%", class_="fill"),
        tag("span", readable(action), class_="label"),
        tag("span", short_percent(probability), class_="share"),
        class_="chosen" if chosen else None,
    )


def _two(value: float) -> str:
    return fixed(value, 2) if abs(value) < 1000 else number(value)


def _tokens(episode: ShownEpisode) -> Html | None:
    if not episode.tokens:
        return None
    pieces = [tag("span", piece, class_=role if role in _ROLES else "read") for piece, role in episode.tokens]
    legend = [tag("li", tag("span", role, class_=role), f" {meaning}") for role, meaning in _ROLES.items()]
    return tag(
        "details",
        tag(
            "summary",
            f"The {'first ' if episode.more_tokens else ''}{len(pieces):,} tokens that the model read and wrote",
        ),
        tag("ul", *legend, class_="roles"),
        tag("p", *pieces, class_="game tokens"),
    )
