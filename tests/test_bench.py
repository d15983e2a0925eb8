"""The benchmarks: both sides play and learn the same, each in its own way, and the result has the promised form."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from grue import bench, games
from grue.bench import rollout, score, update
from grue.bench.common import task_sets
from grue.bench.notebook import WINDOW, PromptActorCritic, PromptPlayer, prompts_of, render_prompt
from grue.errors import ConfigError
from grue.policy.choose import Decoding
from grue.policy.trie import TrieCache
from grue.rollout.collect import collect
from grue.types import Observation, Turn

FACTS = {"model", "parameters", "device", "dtype", "threads"}


def check_form(found: dict[str, Any], name: str, unit: str) -> None:
    """What `grue bench --json` promises."""
    assert list(found) == ["bench", "ratio", "ours", "baseline", "same"]
    assert json.loads(json.dumps(found)) == found
    assert found["bench"] == name and found["same"]
    ours, baseline = found["ours"], found["baseline"]
    for side in (ours, baseline):
        assert side[f"{unit}_per_s"] > 0 and side[unit] > 0 and side["seconds"] > 0
        assert len(side[f"{unit}_per_s_each"]) == side["repetitions"] == 2
    assert found["ratio"] == pytest.approx(ours[f"{unit}_per_s"] / baseline[f"{unit}_per_s"], rel=0.02)
    assert {key: ours[key] for key in FACTS} == {key: baseline[key] for key in FACTS}
    assert ours["threads"] == 1 and ours["dtype"] == "float32"


def test_rollout_by_name_with_settings_on_the_real_game(tiny_folder: Path) -> None:
    heard: list[str] = []
    settings = [f"model.name={tiny_folder}", "model.dtype=float32", "model.context=2048", "threads=1", "game.limit=2"]
    before = torch.get_num_threads()
    found = bench.main("rollout", settings, say=heard.append, slots=2, games=3, baseline_games=1, repetitions=2)
    check_form(found, "rollout", "steps")
    assert torch.get_num_threads() == before
    assert (found["ours"]["games"], found["baseline"]["games"]) == (6, 2)
    assert found["ours"]["steps"] == 12 and found["baseline"]["steps"] == 4
    assert found["ours"]["tokens_read_per_step"] < found["baseline"]["tokens_read_per_step"]
    assert found["baseline"]["passes_per_step"] > 1
    assert len(heard) > 4


def test_update(tiny_folder: Path) -> None:
    heard: list[str] = []
    found = update.run(tiny.config(tiny_folder), heard.append, games=4, baseline_turns=11, repetitions=2)
    check_form(found, "update", "turns")
    assert found["baseline"]["turns"] == 22
    assert found["baseline"]["optimiser_steps"] == 4  # 8 and 3 turns, twice
    assert found["ours"]["optimiser_steps"] == 4  # two minibatches, twice
    assert found["ours"]["tokens_read_per_turn"] < found["baseline"]["tokens_read_per_turn"]


def test_score(tiny_folder: Path) -> None:
    heard: list[str] = []
    config = tiny.config(tiny_folder, "policy.kind=score", "model.context=2048")
    found = score.run(config, heard.append, actions=12, turns=2, states=3, repetitions=2)
    check_form(found, "score", "states")
    assert found["ours"]["largest_difference"] < 1e-4
    assert found["ours"]["actions"] == found["baseline"]["passes_per_state"] == 12
    assert found["ours"]["states"] == found["baseline"]["states"] == 6
    assert len(set(score.state_actions())) == score.ACTIONS == 42


def test_an_unknown_benchmark_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no benchmark 'speed'") as caught:
        bench.main("speed")
    assert "rollout, update, score" in caught.value.hint


def test_both_sides_play_the_same_tasks(tiny_folder: Path) -> None:
    sets = task_sets(tiny.config(tiny_folder), 2, 5)
    assert len({task.seed for tasks in sets for task in tasks}) == 10  # no game twice
    seats = [games.make("toy") for _ in range(3)]
    sides = rollout.Sides(tiny.policy(), PromptPlayer(tiny.policy_model(), tiny.encoder()), seats, sets, 640)
    for number in range(2):
        ours, baseline = sides.ours(number), sides.baseline(number, 2)
        assert [episode.task for episode in ours] == sets[number]
        assert [episode.task for episode in baseline] == sets[number][:2]
        assert [episode.turns[0].observation for episode in baseline] == [e.turns[0].observation for e in ours[:2]]
        for turn in (turn for episode in baseline for turn in episode.turns):
            assert turn.action in (turn.observation.actions or ())
    # the seed of an episode fixes it
    again = PromptPlayer(tiny.policy_model(), tiny.encoder()).play(seats[0], sets[1][1], random.Random("bench/1/1"))
    assert again == baseline[1]


def test_without_a_cache_the_model_chooses_as_it_does_with_one() -> None:
    """The baseline's way of choosing, given our transcript in place of its prompt."""
    model, encoder = tiny.policy_model(), tiny.encoder()
    seats = [games.make("toy") for _ in range(4)]
    episodes = collect(tiny.policy(model), seats, tiny.tasks(4), Decoding(greedy=True), columns=640)
    player, tries = PromptPlayer(model, encoder), TrieCache(encoder.action)
    for episode in episodes:
        for turn in episode.turns[:6]:
            prefix = episode.segments[0].ids[: turn.state_position + 1]
            before = player.passes, player.tokens
            assert player.choose(prefix, tries(turn.observation.actions or ())) == turn.action
            count = len(encoder.action(turn.action))  # a pass for each token, each over everything before it
            assert player.passes - before[0] == count
            assert player.tokens - before[1] == count * len(prefix) + count * (count - 1) // 2


def test_a_prompt_holds_the_task_the_last_steps_and_what_is_valid_now() -> None:
    past = [(f"seen {n}", f"done {n}") for n in range(WINDOW + 2)]
    lines = render_prompt("Win.", past, "a door", ["open door", "wait"]).split("\n")
    assert lines[:3] == ["# TASK: Win.", "Choose exactly one valid action.", "# STEP 2"]
    assert lines[3:5] == ["Obs: seen 2", "Action: done 2"]
    assert lines[-4:] == [f"# STEP {WINDOW + 2}", "Obs: a door", "Valid actions: open door, wait", "Action:"]
    assert render_prompt("Win.", [], "a door", ["wait"]).count("# STEP") == 1

    turns = [Turn(Observation(text, "Win.", "", ("wait",), 0.0), done, 0.0) for text, done in past]
    assert prompts_of(turns)[-1] == render_prompt("Win.", past[:-1], past[-1][0], ["wait"])


@torch.no_grad()
def test_a_turn_of_the_baseline_is_its_prompt_and_its_answer() -> None:
    model, encoder = tiny.policy_model(), tiny.encoder()
    episodes = tiny.rollouts(model, tiny.tasks(3), slots=3)
    cfg = tiny.config(Path("unused")).ppo
    items = update.prompt_samples(episodes, cfg, encoder, 10_000, seed=0)
    assert len(items) == sum(episode.steps for episode in episodes)
    known = {
        (*encoder.tokenizer(prompt).input_ids, *encoder.action(turn.action)): turn
        for episode in episodes
        for turn, prompt in zip(episode.turns, prompts_of(episode.turns), strict=True)
    }
    agent = PromptActorCritic(model)
    for item in items[:8]:
        turn = known[tuple(item.ids_L.tolist())]
        assert item.answer == len(encoder.action(turn.action))
        assert item.old_value == turn.value
        log_prob, value, entropy = agent(item.ids_L, item.answer)
        full_LV = torch.log_softmax(model.lm(item.ids_L[None]).logits[0].double(), -1)
        places = range(len(item.ids_L) - item.answer, len(item.ids_L))
        expected = sum(float(full_LV[place - 1, item.ids_L[place]]) for place in places)
        assert float(log_prob) == pytest.approx(expected, abs=1e-3)
        assert value.ndim == 0 and float(entropy) > 0
