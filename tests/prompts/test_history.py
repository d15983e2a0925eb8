"""What the policy is shown: everything, or a window that is rendered again; the task and the present always whole."""

from __future__ import annotations

import itertools

import pytest

import tiny
from grue.errors import ModelError
from grue.prompts.history import History
from grue.prompts.tokens import Encoder
from grue.types import Observation

GOAL, LIMIT = "Find the key.", 9


def seen(number: int) -> Observation:
    return Observation(f"This is room {number}.", GOAL, "", ("go on", f"open box {number}"), 0.0)


def text_of(ids: list[int] | tuple[int, ...]) -> str:
    return str(tiny.tokenizer().decode(list(ids), skip_special_tokens=True))


def walk(encoder: Encoder, steps: int, context: int | None = None) -> tuple[History, list[str]]:
    """(the history, the prompt before each step)."""
    history, prompts = History(encoder, GOAL, LIMIT, context), []
    for number in range(steps):
        history.show(seen(number), room=4)
        prompts.append(text_of(history.ids))
        history.act(encoder.action("go on"), fed=1)
    return history, prompts


HEAD = "Find the key. You have 9 steps.\n"


def test_without_a_window_ids_are_only_appended() -> None:
    history, prompts = walk(tiny.prompted(), 4)
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(prompts))
    assert prompts[1] == f"{HEAD}This is room 0.\n> go on\nThis is room 1.\n>"
    assert len(history.segments()) == 1


def test_listed_actions_stand_before_the_marker_at_every_step() -> None:
    _, prompts = walk(tiny.prompted(list_actions=True), 2)
    first = f"{HEAD}This is room 0.\nValid actions: go on, open box 0\n>"
    assert prompts == [first, f"{first} go on\nThis is room 1.\nValid actions: go on, open box 1\n>"]


def test_a_window_holds_the_task_the_last_steps_and_the_present() -> None:
    history, prompts = walk(tiny.prompted(history=2), 5)
    assert prompts[2] == f"{HEAD}This is room 0.\n> go on\nThis is room 1.\n> go on\nThis is room 2.\n>"
    assert prompts[4] == f"{HEAD}This is room 2.\n> go on\nThis is room 3.\n> go on\nThis is room 4.\n>"
    # until the window moves, what is shown continues what was shown: one segment, then one for each step
    assert len(history.segments()) == 3
    assert [text_of(segment.ids) for segment in history.segments()] == [f"{p} go on\n" for p in prompts[2:]]


def test_in_a_window_only_the_present_lists_its_actions() -> None:
    history, prompts = walk(tiny.prompted(history=1, list_actions=True), 3)
    assert prompts[2] == f"{HEAD}This is room 1.\n> go on\nThis is room 2.\nValid actions: go on, open box 2\n>"
    assert len(history.segments()) == 3


def test_a_new_segment_has_not_been_seen() -> None:
    encoder = tiny.prompted(history=1)
    history = History(encoder, GOAL, LIMIT)
    history.show(seen(0))
    history.seen = len(history.ids)
    history.act(encoder.action("go on"), fed=2)
    fed = history.seen
    history.show(seen(1))
    assert history.seen == fed > 0 and history.segment == 0
    history.seen = len(history.ids)
    history.act(encoder.action("go on"))
    history.show(seen(2))
    assert history.seen == 0 and history.segment == 1


def test_old_steps_go_first_where_the_context_is_short() -> None:
    """The window would hold 8 steps; only some fit, and neither the task nor the present is ever cut."""
    encoder = tiny.prompted(history=8)
    context = len(walk(encoder, 4)[0].ids) + 2
    history, prompts = walk(encoder, 8, context)
    assert all(len(segment.ids) <= context for segment in history.segments())
    for number, prompt in enumerate(prompts):
        assert prompt.startswith(HEAD) and prompt.endswith(f"This is room {number}.\n>")
    assert "room 6" in prompts[7] and "room 0" not in prompts[7]


@pytest.mark.parametrize("window", [0, 3])
def test_what_cannot_be_shown_whole_is_an_error(window: int) -> None:
    with pytest.raises(ModelError, match="more than the context of 20") as caught:
        walk(tiny.prompted(history=window, list_actions=True), 1, 20)
    assert "model.context" in caught.value.hint


def test_the_context_may_be_filled_to_the_last_token() -> None:
    encoder = tiny.prompted()
    one, two = (len(walk(encoder, steps)[0].ids) for steps in (1, 2))
    action = len(encoder.action("go on"))
    needed = two - action + 4  # of the second observation, with the room that `walk` asks for
    assert walk(encoder, 2, needed)[0].segment == 0
    assert walk(encoder, 2, needed - 1)[0].segment == 1
    alone = len(encoder.task(GOAL, LIMIT)) + len(encoder.observation(seen(0).text)) + 4
    assert alone > one - action
    walk(encoder, 1, alone)
    with pytest.raises(ModelError, match=f"need {alone} tokens, more than the context of {alone - 1}"):
        walk(encoder, 1, alone - 1)


def test_in_a_window_old_steps_make_room_for_the_action() -> None:
    encoder = tiny.prompted(history=2)
    history = History(encoder, GOAL, LIMIT, 200)
    history.show(seen(0))
    history.act(encoder.action("go on"))
    history.show(seen(1))
    whole, room = len(history.ids), 200 - len(history.ids)
    for asked, kept in ((room, True), (room + 1, False)):
        history = History(encoder, GOAL, LIMIT, 200)
        history.show(seen(0))
        history.act(encoder.action("go on"))
        history.show(seen(1), room=asked)
        assert ("room 0" in text_of(history.ids)) == kept and (len(history.ids) == whole) == kept


def test_what_was_written_is_kept_as_it_was_written() -> None:
    """Ids that no text would be encoded to again."""
    encoder = tiny.prompted(history=1, kind="write")
    odd = (*encoder.action("go")[:1], *encoder.action("on"))
    history = History(encoder, GOAL, LIMIT)
    for number in range(3):
        history.show(seen(number))
        history.act(odd)
    ids = history.segments()[-1].ids
    assert sum(ids[place : place + len(odd)] == odd for place in range(len(ids))) == 2
