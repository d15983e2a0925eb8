"""The benchmarks: both sides play and learn the same, each in its own way, and the result has the promised form."""

from __future__ import annotations

import json
import random
import runpy
import sys
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from grue import bench, games
from grue.bench import grpo, memory, random_model, rollout, score, turn_cost, update
from grue.bench.common import task_sets
from grue.bench.notebook import WINDOW, PromptActorCritic, PromptPlayer, prompts_of, render_prompt
from grue.errors import ConfigError, ModelError
from grue.policy.decision import Decoding
from grue.policy.trie import TrieCache
from grue.rollout.collect import collect
from grue.types import Observation, Outcome, Turn

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
    assert found["baseline"]["passes_per_step"] > 2
    assert found["baseline"]["playing_only"]["steps_per_s"] > found["baseline"]["steps_per_s"]
    assert found["baseline"]["playing_only"]["ratio"] < found["ratio"]
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


def test_turn_cost_by_name_on_the_real_game(tiny_folder: Path) -> None:
    heard: list[str] = []
    settings = [f"model.name={tiny_folder}", "model.dtype=float32", "threads=1"]
    sizes = {"games": 2, "baseline_games": 1, "early": 2, "late": 4, "around": 0, "repetitions": 2}
    found = bench.main("turn-cost", settings, say=heard.append, **sizes)
    assert list(found) == ["bench", "ratio", "ours", "baseline", "same"]
    assert json.loads(json.dumps(found)) == found
    ours, baseline = found["ours"], found["baseline"]
    assert {key: ours[key] for key in FACTS} == {key: baseline[key] for key in FACTS}
    assert (ours["games"], baseline["games"]) == (4, 2)
    assert found["ratio"] == pytest.approx(ours["turn_4_ms"] / ours["turn_2_ms"], rel=0.02)
    assert baseline["ratio"] == pytest.approx(baseline["turn_4_ms"] / baseline["turn_2_ms"], rel=0.02)
    assert min(baseline["ratio_whole_history"], *(side["cpu_ratio"] for side in (ours, baseline))) > 0
    assert ours["ratio"] == found["ratio"]
    assert ours["turn_4_history_tokens"] > ours["turn_2_history_tokens"] > ours["turn_2_new_tokens"] > 0
    assert ours["histories_cut"] == 0
    assert len(heard) == 8


def test_turns_that_overlap_or_that_no_game_reaches_are_errors(tiny_folder: Path) -> None:
    config = tiny.config(tiny_folder)
    with pytest.raises(ConfigError, match="must not overlap"):
        turn_cost.run(config, print, early=3, late=5, around=1)
    short = tiny.rollouts(tiny.policy_model(), tiny.tasks(1), slots=1)
    with pytest.raises(ConfigError, match=f"ended after {short[0].steps} of 900 turns"):
        turn_cost._check_long(short, turn_cost.Span(5, 898, 2))


def test_the_cost_of_a_turn_leaves_out_the_time_inside_the_games() -> None:
    began, inside = [10.0, 13.0, 14.0, 19.0], [2.0, 0.5, 1.0, 0.0]
    clock = turn_cost.Clock([np.array([t, 2 * t]) for t in began], [np.array([t, t]) for t in inside])
    assert [clock.cost(turn).tolist() for turn in (2, 3, 4)] == [[1.0, 4.0], [0.5, 1.5], [4.0, 9.0]]
    assert turn_cost.Span(2, 4, 0).ratio([clock]) == (4.0, 2.25)
    assert turn_cost.Span(3, 3, 1).seconds([clock], 3).tolist() == [1.0, 4.0]  # the medians of the three


def test_a_clocked_game_steps_as_the_game_does_and_lists_nothing_that_ends_it() -> None:
    plain, clock, span = games.make("toy"), turn_cost.Clock(), turn_cost.Span(2, 4, 0)
    clocked = [turn_cost.ClockedGame(games.make("toy"), clock, span) for _ in range(2)]
    task = tiny.tasks(1)[0]
    first = plain.reset(task)
    for game in clocked:
        seen = game.reset(task)
        assert seen.text == first.text
        assert set(seen.actions or ()) <= set(first.actions or ())
    action = (first.actions or ())[0]
    expected = plain.step(action)
    for game in clocked:
        observation, *rest = game.step(action)
        assert (observation.text, *rest) == (expected[0].text, *expected[1:])
    assert len(clock.began) == len(clock.inside) == 1  # one turn, whoever plays it
    assert clock.inside[0][0] > 0
    third, *_ = clocked[0].step((clocked[0].shown[-1].actions or ())[0])
    fourth, _, outcome = clocked[0].step((third.actions or ())[0])
    assert fourth == clocked[0].shown[1]  # turn 4 shows turn 2 again
    assert outcome is None
    assert clocked[0].step((fourth.actions or ())[0])[2] is Outcome.LIMIT
    assert len(clock.began) == 4
    every = Observation("", "", "", ("cook the apple in the oven", "eat meal", "look around", "take apple"), 0.0)
    assert turn_cost._endless(every).actions == ("look around", "take apple")


@pytest.mark.slow
def test_memory(tiny_folder: Path) -> None:
    pytest.importorskip("bitsandbytes")
    heard: list[str] = []
    config = tiny.config(tiny_folder, "model.name=embedded")
    found = memory.run(config, heard.append, hidden=512, layers=4, segments=2, tokens=32)
    assert list(found) == ["bench", "ratio", "ours", "baseline", "same"]
    assert json.loads(json.dumps(found)) == found
    ours, baseline = found["ours"], found["baseline"]
    assert {key: ours[key] for key in FACTS} == {key: baseline[key] for key in FACTS}
    assert found["ratio"] == pytest.approx(ours["peak_mib"] / baseline["peak_mib"], abs=1e-3)
    for side in (ours, baseline):
        assert 0 < side["loaded_mib"] < side["peak_mib"] <= side["peak_with_loading_mib"]
    # three models are more than one, and unquantised ones more than 4-bit ones, by more than a process varies
    assert ours["peak_mib"] < baseline["peak_mib"] < baseline["unquantised_peak_mib"]
    assert len(heard) == 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of TRL and what it imports
def test_grpo(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    heard: list[str] = []
    config = tiny.config(tiny_folder, "game.limit=3")
    found = grpo.run(config, heard.append, games=4, plays=2, micro_batch=2, repetitions=2)
    check_form(found, "grpo", "turns")
    ours, baseline = found["ours"], found["baseline"]
    for side in (ours, baseline):
        assert 8 <= side["turns"] <= 24  # 8 games of at most 3 turns
        assert side["games"] == 8 and side["plays_per_game"] == 2
        assert side["turns_per_cpu_s"] > 0 and side["tokens_per_s"] > 0
    assert ours["tokens_read_per_turn"] == ours["tokens_per_turn"]
    assert baseline["tokens_read_per_turn"] > baseline["tokens_per_turn"]  # a game is read again at each turn
    assert 0 < baseline["confining_share"] < baseline["generating_share"] < 1
    assert 0 < baseline["short_calls"]["tokens_per_turn"] < baseline["tokens_per_turn"]
    assert min(baseline[name] for name in ("cpu_ratio", "ratio_short_calls", "cpu_ratio_short_calls")) > 0
    assert len(heard) == 2 + 2 * 4
    with pytest.raises(ConfigError, match="games=5 is not a multiple of plays=2"):
        grpo.run(config, heard.append, games=5, plays=2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pieces", ["JSON", "SHORT"])
def test_trl_plays_valid_actions_to_the_end_and_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: str
) -> None:
    pytest.importorskip("trl")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    from grue.bench import grpo_trl
    from grue.bench.grpo_trl import Seat, trl_side

    written: dict[Seat, list[str]] = {}
    reset, act = Seat.reset, Seat.act

    @wraps(reset)
    def begin(self: Seat, **row: Any) -> str:
        written[self] = []
        return reset(self, **row)

    @wraps(act)
    def noted(self: Seat, action: str) -> str:
        written[self].append(action)
        return act(self, action)

    monkeypatch.setattr(Seat, "reset", begin)
    monkeypatch.setattr(Seat, "act", noted)
    config = tiny.config(tiny.save(tmp_path / "model"), "game.limit=4", "ppo.learning_rate=1e-2")
    (tasks,) = task_sets(config, 1, 2)
    plays = [task for task in tasks for _ in range(2)]
    with trl_side(config, tmp_path / "out", plays, 2, 4, getattr(grpo_trl, pieces)) as side:
        first = {name: p.detach().clone() for name, p in side.trainer.model.named_parameters()}
        played = [side.round(plays) for _ in range(3)]
        assert len(side.seats) == 4
        for seat, task in zip(side.seats, plays, strict=True):
            game, outcome = games.make("toy"), None
            observation = game.reset(task)
            for action in written[seat]:
                assert outcome is None
                assert action.strip() in (observation.actions or ())
                observation, _, outcome = game.step(action)
            assert outcome is not None
            assert seat.get_reward() == observation.score
        assert played[-1] == sum(map(len, written.values()))
        assert any(not torch.equal(p, first[name]) for name, p in side.trainer.model.named_parameters())


@pytest.mark.slow
def test_an_arm_that_fails_says_why(tmp_path: Path) -> None:
    config = tiny.config(tmp_path / "absent", "model.adapter=lora")
    with pytest.raises(ModelError, match=r"'shared' of the memory benchmark failed: .*absent"):
        memory.measure("shared", config, tmp_path / "absent", 1, 16)


def test_shapes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    config = tiny.config(tmp_path / "absent", "model.adapter=lora")
    with pytest.raises(ConfigError, match="is not a multiple of 64"):
        random_model.make_model(tmp_path, config, 100, 1)
    with pytest.raises(ConfigError, match="3 heads cannot share 2 sets of keys"):
        random_model.make_model(tmp_path, config, 192, 1, 2)


def test_both_ways_of_updating_learn_from_the_same_reference(tiny_folder: Path) -> None:
    """Without 4-bit weights here: what each arm does to its policy, its critic and its reference."""
    from grue.bench import memory_arm

    config = tiny.config(tiny_folder, "model.adapter=lora", "model.lora_rank=2")
    items = memory_arm.items_of(2, 48)
    assert [len(item.turns) for item in items] == [3, 3]
    for arm in ("shared", "unquantised"):
        torch.manual_seed(0)
        model, update = memory_arm.ARMS[arm](config)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        update(items)
        moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
        assert any("lora_B" in name for name in moved)
        assert all("lora_" in name or name.startswith("value_head.") for name in moved)
        # only the shared one has its critic on the policy's own model
        assert any(name.startswith("value_head.") for name in moved) == (arm == "shared")


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
    # the games are timed apart from the pass for what PPO needs
    assert [timed.count for timed in sides.playing][1] == sum(episode.steps for episode in baseline)


def test_without_a_cache_the_model_chooses_as_it_does_with_one() -> None:
    """The baseline's way of choosing, given our transcript in place of its prompt."""
    model, encoder = tiny.policy_model(), tiny.encoder()
    seats = [games.make("toy") for _ in range(4)]
    episodes = collect(tiny.policy(model), seats, tiny.tasks(4), Decoding(greedy=True), seed="0", context=640)
    player, tries = PromptPlayer(model, encoder), TrieCache(encoder.action)
    for episode in episodes:
        for turn in episode.turns[:6]:
            prefix = episode.segments[0].ids[: turn.state_position + 1]
            before = player.passes, player.tokens
            assert player.choose(prefix, tries(turn.observation.actions or ())) == turn.action
            count = len(encoder.action(turn.action))  # a pass for each token, each over everything before it
            assert player.passes - before[0] == count
            assert player.tokens - before[1] == count * len(prefix) + count * (count - 1) // 2


@torch.no_grad()
def test_the_baseline_reads_prompt_and_answer_once_more_for_what_ppo_needs() -> None:
    model, encoder = tiny.policy_model(), tiny.encoder()
    player = PromptPlayer(model, encoder)
    episode = player.play(games.make("toy"), tiny.tasks(1)[0], random.Random(0))
    player.passes = player.tokens = 0
    weighed = player.weigh(episode.turns)
    rows = [
        (*encoder.tokenizer(prompt).input_ids, *encoder.action(turn.action))
        for prompt, turn in zip(prompts_of(episode.turns), episode.turns, strict=True)
    ]
    assert (player.passes, player.tokens) == (len(rows), sum(map(len, rows)))
    for row, turn, (log_prob, value) in zip(rows, episode.turns, weighed, strict=True):
        answer = len(encoder.action(turn.action))
        full_LV = torch.log_softmax(model.lm(torch.tensor([row])).logits[0].double(), -1)
        expected = sum(float(full_LV[place - 1, row[place]]) for place in range(len(row) - answer, len(row)))
        hidden_1LH = model.base_lm().get_decoder()(torch.tensor([row])).last_hidden_state
        assert log_prob == pytest.approx(expected, abs=1e-3)
        assert value == pytest.approx(float(model.value_head(hidden_1LH[0, -answer - 1])), abs=1e-4)


def test_a_prompt_holds_the_task_the_last_steps_and_what_is_valid_now() -> None:
    past = [(f"seen {n}", f"done {n}") for n in range(WINDOW + 2)]
    lines = render_prompt("Win.", past, "a door", ["open door", "wait"]).split("\n")
    assert lines[:3] == ["# TASK: Win.", "Choose exactly one valid action.", "# STEP 2"]
    assert lines[3:5] == ["Obs: seen 2", "Action: done 2"]
    assert lines[-4:] == [f"# STEP {WINDOW + 2}", "Obs: a door", "Valid actions: open door, wait", "Action:"]
    assert render_prompt("Win.", [], "a door", ["wait"]).count("# STEP") == 1
    assert render_prompt("Win.", past, "a door", ["wait"], WINDOW + 2).count("# STEP") == WINDOW + 3

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


def test_more_actions_than_there_are_is_an_error() -> None:
    with pytest.raises(ConfigError, match="actions=50 is not a number from 1 to 49"):
        score.state_actions(50)


PROGRAMS = Path(__file__).parents[1] / "benchmarks"


def _said(program: str, argument: str, monkeypatch: pytest.MonkeyPatch) -> str | int | None:
    """What `python benchmarks/PROGRAM.py ARGUMENT` exits with."""
    monkeypatch.syspath_prepend(PROGRAMS)
    monkeypatch.setattr(sys, "argv", [program, argument])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(PROGRAMS / f"{program}.py"), run_name="__main__")
    return left.value.code


@pytest.mark.parametrize("program", [path.stem for path in PROGRAMS.glob("*.py") if path.stem != "arguments"])
def test_every_program_of_benchmarks_has_a_help(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _said(program, "--help", monkeypatch) == 0
    first = (PROGRAMS / f"{program}.py").read_text(encoding="utf-8").partition('"""')[2].partition(":")[0]
    assert first in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("program", ["engines", "families", "extras", "twx"])
@pytest.mark.parametrize(
    ("wrong", "said"), [("nope", "there is no 'nope' here"), ("nope=1", "nope=1: the settings are")]
)
def test_a_wrong_name_is_said_in_a_line(
    program: str, wrong: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _said(program, wrong, monkeypatch) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("engine", ["textworld", "jericho"])
def test_an_engine_that_is_not_installed_is_named_with_its_extra(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec(engine) is not None:
        pytest.skip(f"{engine} is installed")
    assert f"needs {engine}, which is not installed" in str(_said("engines", engine, monkeypatch))
