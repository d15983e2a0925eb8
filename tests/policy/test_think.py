"""A thought is written, bounded, closed, and then an action is chosen."""

from __future__ import annotations

import pytest
import torch

import tiny
from grue import games
from grue.policy import choose
from grue.policy.decision import Decoding
from grue.rollout.collect import collect
from grue.types import Episode

MODEL = tiny.policy_model()


def played(**prompt: object) -> list[Episode]:
    seats = [games.make("toy") for _ in range(4)]
    player = tiny.player(MODEL, kind="think", thought_tokens=5, **prompt)
    return collect(player, seats, tiny.tasks(4), Decoding(), seed="0", context=1024)


@pytest.mark.parametrize("template", ["plain", "chat"])
def test_an_action_is_valid_whatever_was_thought(template: str) -> None:
    encoder = tiny.prompted(kind="think", thought_tokens=5, template=template)
    for episode in played(template=template):
        (segment,) = episode.segments
        for turn in episode.turns:
            assert turn.valid and turn.action in (turn.observation.actions or ())
            start = turn.state_position + 1
            thought = segment.ids[start : start + turn.thought_ids]
            action = encoder.action(turn.action)
            assert segment.ids[start + turn.thought_ids : start + turn.thought_ids + len(action)] == action
            assert len(thought) <= 5 + len(encoder.after_thought(()))
            decoded = str(tiny.tokenizer().decode(list(thought)))
            assert decoded.endswith("\n>") and decoded.count("\n") >= 1
            assert "\n" not in turn.thought
    assert any(turn.thought for episode in played(template=template) for turn in episode.turns)


def test_thoughts_and_actions_are_decided_and_markers_are_not() -> None:
    encoder = tiny.prompted(kind="think", thought_tokens=5)
    for episode in played():
        for turn in episode.turns:
            ids = episode.segments[turn.segment].ids
            inside = [branch.position - turn.state_position for branch in turn.branches]
            thinking = [place for place in inside if place < turn.thought_ids]
            written = turn.thought_ids - len(encoder.after_thought(ids[turn.state_position + 1 :][: len(thinking)]))
            assert thinking == list(range(written))
            for branch in turn.branches:
                assert branch.children[branch.chosen] == ids[branch.position + 1]
            # a choice among actions has as many children as it has ways to go on, a thought the whole vocabulary
            assert all(len(b.children) == len(tiny.tokenizer()) for b in turn.branches[:written])
            assert all(len(b.children) < 10 for b in turn.branches[written:])


@torch.no_grad()
def test_the_critic_is_asked_before_the_thought() -> None:
    for episode in played():
        for turn in episode.turns[:3]:
            ids = episode.segments[turn.segment].ids[: turn.state_position + 1]
            hidden = MODEL.lm.get_decoder()(torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1]
            assert turn.value == pytest.approx(float(MODEL.value_head(hidden)), abs=1e-4)


def test_actions_are_weighed_behind_the_thought(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "action_probabilities", lambda model, node, before, *rest: [("", len(before))])
    episode = played()[0]
    player = tiny.policy()
    for turn in episode.turns:
        assert turn.thought_ids > 0
        places = player.weigh(turn, episode.segments[turn.segment].ids, 1.0)
        assert places == [("", turn.state_position + 1 + turn.thought_ids)]
