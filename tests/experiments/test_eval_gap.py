"""The parts of `grue experiment eval-gap`, by hand and on the toy with a tiny model."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import tiny
from grue import games
from grue.algos.advantages import turn_gae
from grue.cli.main import app
from grue.config import Config, override, preset_config
from grue.engine.engine import Engine
from grue.errors import ConfigError, DataError
from grue.evaluate.evaluate import evaluate
from grue.evaluate.stats import wilson
from grue.experiments import prepare
from grue.experiments.cells import Cell, Cells, from_episodes
from grue.experiments.eval_gap.arms import PPOArm, arm_config, defective
from grue.experiments.eval_gap.contrasts import crossed, other_games, paired, unpaired
from grue.experiments.eval_gap.defects import Arm, ExtraStep, advantages_with, cut_at_limit, top_k_policy
from grue.experiments.eval_gap.few_games import chosen_on_what_is_reported, few_games
from grue.experiments.eval_gap.measure import Measure
from grue.experiments.eval_gap.player import Answer, Table, choosing, play_prompts, writing
from grue.experiments.eval_gap.prompts import Style, prompt_ids
from grue.experiments.eval_gap.settings import Settings
from grue.experiments.eval_gap.suspects import EVALUATION, TRAINING, fitting, wanted
from grue.experiments.eval_gap.table import markdown, ranked
from grue.experiments.sizes import read_sizes
from grue.experiments.trainings import crossed_interval
from grue.games.play import play
from grue.games.teachers import teacher
from grue.games.toy import ToyGame
from grue.policy.decision import Decoding
from grue.progress import Progress
from grue.rollout.collect import collect
from grue.stages.session import Session, open_session
from grue.storage.contents import read_run_config
from grue.storage.run import Run
from grue.train.credit import credit
from grue.types import Episode, Outcome


def _cell(name: str, wins: list[int], **extra: object) -> Cell:
    won = {seed: bool(win) for seed, win in enumerate(wins)}
    return Cell(name, won, {seed: float(win) for seed, win in won.items()}, dict.fromkeys(won, 5), extra=dict(extra))


def test_repaired_credit_is_turn_gae_in_every_episode() -> None:
    rng = np.random.default_rng(0)
    rewards, values = ([rng.normal(size=n) for n in (3, 5, 1)] for _ in range(2))
    found = advantages_with(rewards, values, 0.9, 0.8, bootstrap=True, leak=False)
    for ours, r, v in zip(found, rewards, values, strict=True):
        np.testing.assert_allclose(ours, turn_gae(r, v, 0.0, 0.9, 0.8)[0])


@pytest.mark.parametrize("normalised", [True, False])
def test_an_arm_without_a_defect_has_the_librarys_credit(normalised: bool) -> None:
    """Rewards for winning and penalties too: else the rows would show their absence, not the defect."""
    cfg = preset_config("toy").ppo.model_copy(
        update={"win_bonus": 1.0, "lost_penalty": 0.5, "normalise_advantages": normalised, "group_weight": 0.0}
    )
    episodes = [
        replace(episode, outcome=outcome)
        for episode, outcome in zip(
            tiny.rollouts(tiny.policy_model(), tiny.tasks(3)), (Outcome.WON, Outcome.LOST, Outcome.LIMIT), strict=True
        )
    ]
    expected, _ = credit(episodes, cfg)
    for ours, theirs in zip(defective(episodes, Arm(), cfg), expected, strict=True):
        np.testing.assert_allclose(ours, theirs)
    leaking = defective(episodes, Arm(leak=True), cfg)
    assert not np.allclose(leaking[0], expected[0])


def test_credit_with_both_defects_is_the_notebooks_by_hand() -> None:
    # two episodes of one turn; no bootstrap: delta = r - V; the second episode's 1 - 0.5 leaks into the first
    rewards, values = [np.array([0.0]), np.array([1.0])], [np.array([0.2]), np.array([0.5])]
    found = advantages_with(rewards, values, 1.0, 0.95, bootstrap=False, leak=True)
    np.testing.assert_allclose(np.concatenate(found), [-0.2 + 0.95 * 0.5, 0.5])


def test_missing_bootstrap_punishes_steps_without_reward() -> None:
    rewards, values = [np.array([0.0, 1.0])], [np.array([1.0, 1.0])]  # a critic that is right
    np.testing.assert_allclose(advantages_with(rewards, values, 1.0, 0.5, bootstrap=True, leak=False)[0], [0.0, 0.0])
    np.testing.assert_allclose(advantages_with(rewards, values, 1.0, 0.5, bootstrap=False, leak=False)[0], [-1.0, 0.0])


def test_the_extra_step_comes_after_the_limit_that_the_prompt_shows() -> None:
    task = tiny.tasks(1, limit=3)[0]
    game = ExtraStep(games.make("toy"))
    game.reset(task)
    outcomes = [game.step("look")[2] for _ in range(4)]
    assert outcomes == [None, None, None, Outcome.LIMIT]


def test_cut_demonstrations_end_at_the_limit() -> None:
    game = games.make("toy")
    whole = play(game, tiny.tasks(1, limit=3)[0], teacher("gold", game), record_limit=50)
    cut = cut_at_limit(whole)
    assert whole.won and whole.steps > 3
    assert cut.steps == 3 and cut.outcome is Outcome.LIMIT and cut.turns == whole.turns[:3]
    assert cut_at_limit(cut) == cut


PAST = [("You are here.", "look"), ("It is dark.", "go east"), ("A hall.", "go west")]


def test_the_default_prompt_is_the_librarys_transcript() -> None:
    encoder = tiny.encoder()
    ids = prompt_ids(Style(), encoder, "Win.", 9, PAST[:1], "It is dark.")
    pieces = (encoder.task("Win.", 9), encoder.observation("You are here."), encoder.action("look"))
    assert ids == [token for piece in (*pieces, encoder.observation("It is dark.")) for token in piece]


def _text(ids: list[int]) -> str:
    return str(tiny.tokenizer().decode(ids, skip_special_tokens=True))


def test_the_window_keeps_the_last_steps_and_loses_the_task_at_one_of_them() -> None:
    def shown(steps: int, **style: bool) -> str:
        return _text(prompt_ids(Style(window=2, **style), tiny.encoder(), "Win.", 9, PAST[:steps], "Now."))

    assert "You are here." in shown(2) and "You are here." not in shown(3)
    assert all("Win." in shown(steps) for steps in range(4))
    assert ["Win." in shown(steps, task_line=False) for steps in range(4)] == [True, True, False, True]


def test_a_right_cut_loses_what_happens_now_and_a_left_cut_the_task() -> None:
    def shown(cut: str) -> str:
        style = Style(budget=60, cut=cut)  # type: ignore[arg-type]
        ids = prompt_ids(style, tiny.encoder(), "Win.", 9, PAST * 4, "Now you know.")
        assert len(ids) <= 60
        return _text(ids)

    assert "Win." in shown("right") and "Now you know." not in shown("right")
    assert "Win." not in shown("left") and shown("left").endswith("Now you know.\n>")
    assert "Win." in shown("oldest") and shown("oldest").endswith("Now you know.\n>")


def test_tokenising_again_keeps_the_text() -> None:
    ours = prompt_ids(Style(), tiny.encoder(), "Win.", 9, PAST, "Now.")
    again = prompt_ids(Style(retokenise=True), tiny.encoder(), "Win.", 9, PAST, "Now.")
    assert _text(ours) == _text(again)
    assert again[0] == tiny.tokenizer().bos_token_id


@pytest.mark.parametrize("kind", ["choose", "aligned"])
def test_prompts_in_the_librarys_style_play_as_the_library_does(kind: str) -> None:
    policy, tasks = tiny.player(kind=kind), tiny.tasks(7, fold="dev")
    seats = [games.make("toy") for _ in range(3)]
    for decoding in (Decoding(greedy=True), Decoding()):
        ours = play_prompts(policy, seats, tasks, Style(), choosing(policy, decoding), context=512)
        theirs = evaluate(policy, seats, tasks, decoding, context=512)
        assert [[t.action for t in e.turns] for e in ours] == [[t.action for t in e.turns] for e in theirs]
        assert [e.outcome for e in ours] == [e.outcome for e in theirs]


@pytest.mark.parametrize("kind", ["choose", "aligned"])
def test_prompts_fit_the_context(kind: str) -> None:
    policy, tasks = tiny.player(kind=kind), tiny.tasks(3)
    seats = [games.make("toy") for _ in range(3)]
    (whole,) = play_prompts(policy, seats[:1], tasks[:1], Style(), choosing(policy, Decoding()), context=512)
    longest = max(len(policy.encoder.observation(turn.observation.text)) for turn in whole.turns)
    context, first = 2 * longest + 40, tiny.encoder().task(whole.turns[0].observation.goal, tiny.LIMIT)
    (plain,) = evaluate(policy, seats[:1], tasks[:1], Decoding(), context=512)
    assert len(plain.segments[0].ids) > context
    for answer in (choosing(policy, Decoding()), writing(policy, Decoding(), most=9)):
        for style in (Style(), Style(budget=10_000, cut="right")):
            tables: list[tuple[list[int], str]] = []
            episodes = play_prompts(policy, seats, tasks, style, _noting(answer, tables), context=context)
            assert not any(episode.failed for episode in episodes)
            for prompt, text in tables:
                now = list(policy.encoder.observation(text))
                assert prompt[: len(first)] == list(first)
                assert prompt[-len(now) :] == now
            assert context / 2 < max(len(prompt) for prompt, _ in tables) <= context - answer.room(("look",))


def test_a_prompt_that_cannot_fit_fails_its_game_alone() -> None:
    policy, tasks = tiny.player(), tiny.tasks(6)
    seats = [games.make("toy") for _ in range(3)]
    answer = choosing(policy, Decoding())
    for context in range(60, 200, 4):
        ours = play_prompts(policy, seats, tasks, Style(), answer, context=context)
        failed = [episode for episode in ours if episode.failed]
        assert all("does not fit" in episode.error for episode in failed)
        if 0 < len(failed) < len(ours):
            return
    pytest.fail("no context in which some games fit and others do not")


def _noting(answer: Answer, tables: list[tuple[list[int], str]]) -> Answer:
    """`answer`, which also notes each prompt and the observation that it is for."""

    def act(engine: Engine, playing: list[Table]) -> list[str]:
        tables.extend((table.prompt, table.recorder.observation.text) for table in playing)
        return answer.act(engine, playing)

    return Answer(act, answer.room)


def test_written_actions_may_be_invalid_and_cost_a_step() -> None:
    policy, tasks = tiny.policy(), tiny.tasks(4)
    seats = [games.make("toy") for _ in range(4)]
    for top_k in (0, 5):
        answer = writing(policy, Decoding(), top_k=top_k, most=4)
        episodes = play_prompts(policy, seats, tasks, Style(), answer, context=512)
        assert any(not turn.valid for episode in episodes for turn in episode.turns)
        assert all(episode.steps == tiny.LIMIT for episode in episodes if episode.outcome is Outcome.LIMIT)


def test_one_token_of_the_top_is_greedy() -> None:
    policy, tasks = tiny.policy(), tiny.tasks(4)
    seats = [games.make("toy") for _ in range(4)]
    answers = (writing(policy, Decoding(greedy=True), most=6), writing(policy, Decoding(), top_k=1, most=6))
    first, second = (play_prompts(policy, seats, tasks, Style(), answer, context=512) for answer in answers)
    assert [[t.action for t in e.turns] for e in first] == [[t.action for t in e.turns] for e in second]


@pytest.mark.parametrize("kind", ["choose", "aligned"])
def test_top_k_draws_from_few_and_records_the_full_distribution(kind: str) -> None:
    model, tasks = tiny.policy_model(), tiny.tasks(6)
    seats, encoder = [games.make("toy") for _ in range(6)], tiny.prompted(kind=kind, min_p=0.0)

    def played(top_k: int | None, decoding: Decoding) -> list[Episode]:
        policy = tiny.player(model, kind=kind, min_p=0.0) if top_k is None else top_k_policy(model, encoder, top_k)
        return collect(policy, seats, tasks, decoding, seed="a")

    sampled = Decoding(temperature=4.0)
    narrow, greedy = played(1, sampled), played(None, replace(sampled, greedy=True))
    wide, whole = played(10_000, sampled), played(None, sampled)
    # what is played may be a child that is not the vocabulary's likeliest token, but never a less likely child
    for same, other in ((narrow, greedy), (wide, whole)):
        assert [[t.action for t in e.turns] for e in same] == [[t.action for t in e.turns] for e in other]
        for mine, theirs in zip(same, other, strict=True):
            for ours, its in zip(mine.turns, theirs.turns, strict=True):
                assert (ours.log_prob, ours.entropy) == pytest.approx((its.log_prob, its.entropy), abs=1e-5)
                assert (ours.branches, ours.candidates) == (its.branches, its.candidates)
    assert [[t.action for t in e.turns] for e in whole] != [[t.action for t in e.turns] for e in greedy]
    # where some actions are cut off, too, the log-probabilities are those among all
    some, policy = played(40, sampled), tiny.player(model, kind=kind, min_p=0.0)
    assert [[t.action for t in e.turns] for e in some] != [[t.action for t in e.turns] for e in whole]
    for episode in some:
        (segment,) = episode.segments
        for turn in episode.turns:
            weighed = dict(policy.weigh(turn, segment.ids, 4.0))
            assert turn.log_prob == pytest.approx(math.log(weighed[turn.action]), abs=1e-4)


def test_a_cell_is_played_once_and_another_content_has_another_file(tmp_path: Path) -> None:
    cells, plays, made = Cells(tmp_path), [], {"game": {"name": "toy"}, "games": 3}

    def make() -> Cell:
        plays.append(1)
        return replace(_cell("c", [1, 0, 1], invalid=0.25), game="toy")

    first = cells.get("c", made, make)
    assert cells.get("c", made, make) == first and len(plays) == 1
    cells.get("c", {**made, "games": 4}, make)
    assert len(plays) == 2
    cells.path("c", made).write_text("{")
    with pytest.raises(DataError, match="not a cell"):
        cells.get("c", made, make)


def test_a_cell_knows_which_games_pose_the_same_problem(tmp_path: Path) -> None:
    made = {"game": {"name": "sorting", "params": {}, "limit": 9}, "fold": "dev", "games": 3}
    cells, seeds = Cells(tmp_path), [10_003, 10_004, 10_103]
    # as earlier runs have left it: of problems the file says nothing, but it says which game was played
    old = {"name": "c", "made": made, "success": 1.0, "games": [[seed, True, 1.0, 5] for seed in seeds]}
    cells.path("c", made).write_text(json.dumps(old | {"lost": 0, "failed": 0, "extra": {}}))
    gold = tiny.scripted("gold")[:3]
    played = [replace(e, task=replace(e.task, game="sorting", seed=s)) for e, s in zip(gold, seeds, strict=True)]
    for cell in (cells.get("c", made, lambda: pytest.fail("it is on file")), from_episodes("c", played)):
        assert cell.problems(seeds[:2]) is None
        first, other, copy = cell.problems(seeds) or ()
        assert first == copy != other
    assert from_episodes("c", gold).problems(seeds) is None


def test_failed_games_are_counted_and_left_out() -> None:
    episodes = [*tiny.scripted("gold")[:3]]
    failed = replace(episodes[0], outcome=Outcome.FAILED, error="the door is gone")
    cell = from_episodes("c", [failed, *episodes[1:]])
    assert (cell.games, cell.failed, cell.success) == (2, 1, 1.0)
    with pytest.raises(DataError, match="all 1 games of c failed: the door is gone") as caught:
        from_episodes("c", [failed])
    assert caught.value.hint.startswith("grue check-game toy ")


def test_paired_points_are_repaired_less_defect() -> None:
    repaired, defect = _cell("a", [1, 1, 1, 0] * 20), _cell("b", [1, 0, 1, 0] * 20)
    found = paired("x", "?", repaired, defect, resamples=400)
    assert found["points"] == pytest.approx(25.0)
    assert 10 < found["ci95"][0] < 25 < found["ci95"][1] < 40
    assert found["repaired"]["success"] == 0.75 and found["kind"] == "cost"
    apart = unpaired("x", "?", repaired, defect, resamples=400)
    assert apart["points"] == pytest.approx(25.0)
    assert apart["ci95"][1] - apart["ci95"][0] > found["ci95"][1] - found["ci95"][0]  # pairing narrows


def _copies(name: str, wins: list[int], copies: int = 10) -> Cell:
    """Each problem of `sorting` in several rooms, which end alike."""
    won = {problem + 100 * room: bool(win) for problem, win in enumerate(wins) for room in range(copies)}
    return Cell(name, won, {}, {}, game="sorting")


def test_games_of_one_problem_count_as_one() -> None:
    """1000 games of 100 problems are worth 100: the interval of each kind of contrast is that of one game a problem."""
    rng = np.random.default_rng(3)
    a, b = (list(rng.integers(0, 2, 100)) for _ in range(2))
    many, once = (_copies("a", a), _copies("b", b)), (_copies("a", a, 1), _copies("b", b, 1))
    found, few = paired("x", "?", *many, resamples=400), paired("x", "?", *once, resamples=400)
    assert found["ci95"] == pytest.approx(few["ci95"]) and found["pairing"] == "paired on 1000 games of 100 problems"
    assert found["points"] == pytest.approx(few["points"]) and few["pairing"] == "paired on 100 games"
    # success itself: a bootstrap over 100 problems against Wilson's of 100 games
    assert found["repaired"]["ci95"] == pytest.approx(few["repaired"]["ci95"], abs=0.02)
    apart = unpaired("x", "?", *many, resamples=400)["ci95"]
    assert apart == pytest.approx(unpaired("x", "?", *once, resamples=400)["ci95"])
    trained = crossed("x", "?", *([cell] * 3 for cell in many))
    assert trained["ci95"] == pytest.approx(crossed("x", "?", *([c] * 3 for c in once))["ci95"])
    assert trained["pairing"] == "3 trainings each, paired by seed, 1000 games of 100 problems"


def test_a_small_evaluation_has_each_problem_once_before_any_twice() -> None:
    many = _copies("a", [1, 0] * 10)
    # rooms do not matter here, so 20 games (each problem once) and 40 (each twice) say what all 200 say
    for count in (20, 40):
        assert few_games(many, count, resamples=100)["points"] == 0
    assert few_games(many, 10, resamples=400)["details"]["standard_deviation_points"] == pytest.approx(
        few_games(_copies("a", [1, 0] * 10, 1), 10, resamples=400)["details"]["standard_deviation_points"], abs=1.5
    )


def test_draws_of_exactly_ten_points_more_or_less_are_ten_points_off() -> None:
    """0.6 - 0.7 is a little less than a tenth in floating point."""
    found = few_games(_cell("a", [1] * 7 + [0] * 3), 5, resamples=4000)["details"]
    # 5 of 10 games, 7 of which are won: 2, 3, 4 or 5 wins, so every draw is 10 or 30 points off
    assert found["share_ten_points_off"] == 1.0


def test_the_honest_number_is_of_other_problems() -> None:
    # four problems, of which each checkpoint solves another half: what two of them say holds for all their copies
    curves = [{0: _copies("0", [1, 1, 0, 0], 5), 1: _copies("1", [0, 0, 1, 1], 5)}]
    found = chosen_on_what_is_reported(curves, 2, resamples=400)["details"]
    # chosen on one problem of either half (2 of 3 draws): half and half; on both of one: all there, nothing elsewhere
    assert found["reported"] == pytest.approx(2 / 3 * 0.5 + 1 / 3, abs=0.05)
    assert found["honest"] == pytest.approx(2 / 3 * 0.5, abs=0.05)


def test_where_all_problems_differ_the_draws_are_of_games() -> None:
    """The published intervals of other games stand, to the last digit: the formulas here know no problems."""
    rng = np.random.default_rng(1)
    a, b = _cell("a", list(rng.integers(0, 2, 50))), _cell("b", list(rng.integers(0, 2, 40)))
    a_n, b_n = a.wins(range(50)), b.wins(range(40))

    def ends(means: list[float]) -> list[float]:
        return [round(100 * float(end), 3) for end in np.percentile(means, [2.5, 97.5])]

    rng = np.random.default_rng(0)
    both = [rng.choice(a_n, 50).mean() - rng.choice(b_n, 40).mean() for _ in range(200)]
    assert unpaired("x", "?", a, b, resamples=200)["ci95"] == ends(both)
    rng, difference = np.random.default_rng(0), a_n[:40] - b_n
    assert paired("x", "?", a, b, resamples=200)["ci95"] == ends(
        list(difference[rng.integers(0, 40, (200, 40))].mean(1))
    )
    rng = np.random.default_rng(0)
    small = [rng.choice(a_n, 7, replace=False).mean() for _ in range(200)]
    assert few_games(a, 7, resamples=200)["details"]["range_points"] == pytest.approx(ends(small), abs=0.01)
    rng, gaps, wins_IG = np.random.default_rng(0), [], np.stack([a_n[:40], b_n])
    for _ in range(200):
        rng.integers(1)  # the only training
        mixed = rng.permutation(40)
        best = int(wins_IG[:, mixed[:7]].mean(1).argmax())
        gaps.append(wins_IG[best, mixed[7:]].mean() - wins_IG[best, mixed[:7]].mean())
    assert chosen_on_what_is_reported([{0: a, 1: b}], 7, resamples=200)["ci95"] == ends(gaps)
    assert paired("x", "?", a, b, resamples=200)["repaired"]["ci95"] == pytest.approx(
        list(wilson(int(a_n.sum()), 50)), abs=1e-6
    )


def test_games_that_are_all_alike_on_either_side_are_no_proof_of_certainty() -> None:
    low, high = unpaired("x", "?", _cell("a", [1] * 50), _cell("b", [0] * 50), resamples=100)["ci95"]
    won, lost = wilson(50, 50), wilson(0, 50)
    assert (low, high) == pytest.approx((100 * (won.low - lost.high), 100.0), abs=1e-3)
    # one side alone: that it won all of 50 games leaves a few open
    low, high = unpaired("x", "?", _cell("a", [1] * 50), _cell("b", [1, 0] * 25), resamples=100)["ci95"]
    half = wilson(25, 50)
    apart = ((1 - won.low) ** 2 + (half.high - 0.5) ** 2) ** 0.5, (0.5 - half.low)
    assert (low, high) == pytest.approx((50 - 100 * apart[0], 50 + 100 * apart[1]), abs=1e-3)


def test_the_interval_over_trainings_covers_what_it_claims() -> None:
    """Defects that cost 5 points on average, and each training another share of them, in three pairs of trainings."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        cost_S, game_G = rng.normal(0.05, 0.08, (3, 1)), rng.normal(0, 0.3, 100)
        low, high = crossed_interval(cost_S + game_G + rng.normal(0, 0.4, (3, 100)))
        held += low <= 0.05 <= high
    assert 0.93 <= held / 400 <= 0.99  # a bootstrap of pairs and games holds it in 0.85


def test_the_interval_of_trainings_is_around_what_it_is_of() -> None:
    cells = [[_cell("a", [1, 1, 0, 1])] * 3, [_cell("b", [0, 1, 0, 0])] * 3]
    found = crossed("x", "?", *cells)
    assert found["details"]["by_seed"] == [50.0] * 3
    assert "paired by seed, 4 games: +50.0, +50.0, +50.0 |" in markdown([found], "Why?")


def test_a_defect_that_changes_no_game_has_an_interval() -> None:
    same = _cell("a", [1, 1, 1, 0] * 125)
    bound = 100 * wilson(0, 500).high  # 0.8 points
    assert paired("x", "?", same, same, resamples=100)["ci95"] == pytest.approx([-bound, bound], abs=1e-3)
    assert crossed("x", "?", [same] * 3, [same] * 3)["ci95"] == pytest.approx([-bound, bound], abs=1e-3)


def test_few_games_tell_the_spread_of_small_evaluations() -> None:
    found = few_games(_cell("a", [1, 0] * 500), 20, resamples=2000)
    # standard error of 20 out of 1000 at one half: sqrt(0.25 / 20 * 980 / 999) = 0.111
    assert found["details"]["standard_deviation_points"] == pytest.approx(11.1, abs=0.6)
    assert found["points"] == pytest.approx(1.96 * 11.1, abs=4)
    assert found["ci95"] == pytest.approx([-1.96 * 11.1, 1.96 * 11.1], abs=4)
    rare = few_games(_cell("a", [1] * 950 + [0] * 50), 20, resamples=2000)  # nothing is won more often than always
    assert rare["ci95"][1] == 5.0 and rare["ci95"][0] < -9
    assert rare["points"] == pytest.approx((rare["ci95"][1] - rare["ci95"][0]) / 2)
    assert found["kind"] == "chance"


def test_choosing_on_the_games_that_are_reported_flatters() -> None:
    rng = np.random.default_rng(0)
    # ten checkpoints that are all equally good: what the best shows on 20 games is luck
    curves = [{i: _cell(str(i), list(rng.integers(0, 2, 200))) for i in range(10)} for _ in range(3)]
    found = chosen_on_what_is_reported(curves, 20, resamples=500)
    assert found["points"] < -8  # honest less reported: the report is too high
    assert found["details"]["reported"] > 0.6 > 0.55 > found["details"]["honest"]
    # the columns of the table are the two numbers that the points subtract
    honest, reported = found["repaired"]["success"], found["defect"]["success"]
    assert [round(honest, 4), round(reported, 4)] == [found["details"]["honest"], found["details"]["reported"]]
    assert found["points"] == pytest.approx(100 * (honest - reported), abs=1e-3)
    assert f"| {honest:.1%} | {reported:.1%} |" in markdown([found], "Why?")


def test_the_table_ranks_costs_by_size_and_keeps_gaps_apart() -> None:
    small = paired("small", "?", _cell("a", [1] * 8), _cell("b", [1] * 7 + [0]), resamples=100)
    large = paired("large", "?", _cell("a", [0] * 8), _cell("b", [1] * 7 + [0]), resamples=100)
    gap = unpaired("gap", "?", _cell("a", [1, 1, 1, 1]), _cell("b", [0, 0, 0, 0]), resamples=100)
    chance = few_games(_cell("a", [1, 0, 1, 0]), 2, resamples=100)
    assert [c["name"] for c in ranked([gap, small, chance, large])] == ["large", "small", "few-games", "gap"]
    text = markdown([gap, small, chance, large], "Why?")
    assert text.index("**large**") < text.index("small") < text.index("few-games") < text.index("In the repaired")
    assert "-87.5" in text and "± " in text


def test_settings_name_what_is_wrong() -> None:
    assert read_sizes(Settings, ["games=50", "fold=test"]) == Settings(games=50, fold="test")
    for wrong, said in (
        ("gmaes=3", "not a setting"),
        ("games=0", "games=0"),
        ("seeds=2", "seeds=2"),
        ("games", "not a setting"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_sizes(Settings, [wrong])


@pytest.mark.parametrize("preset", ["cooking16", "toy", "coin"])
def test_an_arm_trains_with_what_any_preset_sets_less_other_baselines(preset: str) -> None:
    ours, size = preset_config(preset).ppo, Settings(iterations=8, episodes=6)
    found = arm_config(ours, size, Arm(kl="old"))
    assert (found.game_baseline, found.hidden_state, found.kl_coef) == (False, False, size.kl_coef)
    assert (found.episodes_per_iteration, found.minibatches, found.gamma) == (6, 6, ours.gamma)
    assert found.value_passes > 0
    assert (found.rate_warmup, found.target_kl, found.entropy_target) == (ours.rate_warmup, 0, 0)


def test_contrasts_named_in_two_options_are_all_wanted(tmp_path: Path) -> None:
    out = tmp_path / "run"
    Run(out, tiny.config(out))
    names = ["--only", "nothing", "--only", "sampled,leak"]
    said = CliRunner().invoke(app, ["experiment", "eval-gap", str(out), *names])
    assert said.exit_code == 2 and "there is no contrast 'nothing'" in said.stderr


def test_contrasts_are_named_and_split_by_what_they_need() -> None:
    assert wanted((), training=False) == EVALUATION
    assert list(wanted((), training=True)) == [*EVALUATION, *TRAINING]
    assert list(wanted(("leak", "sampled"), training=False)) == ["sampled", "leak"]
    with pytest.raises(ConfigError, match="no contrast"):
        wanted(("nothing",), training=True)
    with pytest.raises(ConfigError, match="no experiment"):
        prepare("nothing", [Path("x")])


def _trained(out: Path, config: Config) -> Path:
    """A run of the toy up to PPO."""
    from grue import stages

    for name in ("demos", "sft", "ppo"):
        stages.run_stage(name, config, out, say=Progress(quiet=True))  # type: ignore[arg-type]
    return out


SHORT = ("ppo.iterations=2", "ppo.dev_every=0")


@pytest.fixture(scope="module", params=["choose", "aligned"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    # whole actions of random weights differ by many nats: without a temperature there would be nothing to learn
    wide = () if request.param == "choose" else ("policy.min_p=0", "ppo.temperature=8")
    config = tiny.config(tiny_folder, *SHORT, f"policy.kind={request.param}", *wide)
    return _trained(tmp_path_factory.mktemp("runs") / "toy", config)


@pytest.fixture(scope="module")
def trained_again(trained: Path) -> Path:
    """The same with another seed."""
    return _trained(trained.parent / "toy1", override(read_run_config(trained), seed=1))


SMALL = [
    "games=8", "few_games=4", "window=2", "sft_games=6", "sft_batch=3", "iterations=2", "episodes=6", "minibatches=2",
    "arm_games=6", "curve_every=1", "bootstrap=100", "answer_tokens=4", "lora_rank=2",
]  # fmt: skip


def test_contrasts_without_training_run_and_are_taken_up_again(trained: Path) -> None:
    names = [name for name in EVALUATION if name not in ("layouts", "recipes")]  # the toy has no recipes
    result = prepare("eval-gap", [trained], SMALL, only=names, training=False)(Progress(quiet=True))
    assert {contrast["name"] for contrast in result["contrasts"]} == set(names)
    out = trained / "experiments" / "eval-gap"
    stored = json.loads((out / "contrasts" / "sampled.json").read_text())
    assert stored["settings"]["games"] == 8 and stored["repaired"]["games"] == 8
    table = (out / "eval-gap.md").read_text()
    assert "| what | repaired |" in table and "only the last 2 steps stay in the prompt | " in table
    before = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    again = prepare("eval-gap", [trained], SMALL, only=names, training=False)(Progress(quiet=True))
    assert again["contrasts"] == result["contrasts"]
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()} == before


def test_what_a_game_has_not_is_left_out(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["sampled", "layouts", "train-to-dev"]
    every = {name: EVALUATION[name] for name in names}
    assert [*fitting(every, "cookingworld", Progress())] == names
    assert [*fitting(every, "toy", Progress())] == ["sampled", "train-to-dev"]
    assert "left out, as this run of toy has no recipes of its own for each fold: layouts\n" in capsys.readouterr().out
    arms = {name: TRAINING[name] for name in ("demonstrations-cut", "leak")}
    assert [*fitting(arms, "cookingworld", Progress(quiet=True))] == [*arms]
    assert [*fitting(arms, "cookingworld", Progress(quiet=True), demonstrations=False)] == ["leak"]
    assert [*fitting({"sampled": EVALUATION["sampled"]}, "toy", Progress())] == ["sampled"]
    assert capsys.readouterr().out == ""
    assert [*fitting(every, "jericho:zork1.z5", Progress(quiet=True))] == ["sampled"]
    with pytest.raises(ConfigError, match="nothing is left to measure: this run of toy has no recipes"):
        prepare("eval-gap", [trained], SMALL, only=["recipes"], training=False)(Progress(quiet=True))


def test_chance_in_few_games_is_not_told_from_as_few(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of draws of all games each has the same mean, which looked like certainty."""
    sizes = [*SMALL, "few_games=5"]
    result = prepare("eval-gap", [trained], sizes, only=["few-games"], training=False, out=tmp_path)(Progress())
    assert result["contrasts"] == []
    assert "few-games: skipped" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["[]", "null", "{", '{"settings": [1]}', '{"name": "sampled", "points": null}'])
def test_what_is_no_contrast_is_named_before_anything_is_measured(text: str, trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "contrasts" / "remaining.json"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(DataError, match=r"remaining\.json is not a contrast"):
        prepare("eval-gap", [trained], SMALL, only=["sampled"], training=False, out=tmp_path)(Progress(quiet=True))
    assert not (tmp_path / "cells").exists()


def test_a_run_is_only_read(trained: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.is_file()}
    prepare("eval-gap", [trained], SMALL, only=["sampled"], training=False, out=tmp_path)(Progress(quiet=True))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (tmp_path / "eval-gap.md").exists()


def test_a_run_that_changes_meanwhile_is_noticed(trained: Path, tmp_path: Path) -> None:
    """Cells are kept under the name of the weights, which another command may replace."""
    config = read_run_config(trained)
    with open_session(Run(trained, config, leads=False), config, Progress(quiet=True)) as session:
        session.load("ppo")
        weights = {name: p.detach().clone() for name, p in session.model.named_parameters() if p.requires_grad}
        size = read_sizes(Settings, SMALL)
        assert Measure(session, size, Cells(tmp_path), weights).played().won
        older = {name: weight + 1 for name, weight in weights.items()}
        with pytest.raises(DataError, match="other ppo weights than when this command began"):
            Measure(session, size, Cells(tmp_path), older).played()


def test_games_that_do_not_fit_the_context_are_told_of(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There the policy begins anew, which contrasts with prompts of their own would show as if it were theirs."""
    for context, said in ((128, True), (1024, False)):
        config = override(read_run_config(trained), [f"model.context={context}"])
        with open_session(Run(trained, config, leads=False), config, Progress(quiet=True)) as session:
            session.load("ppo")
            weights = {name: p.detach().clone() for name, p in session.model.named_parameters() if p.requires_grad}
            Measure(session, read_sizes(Settings, SMALL), Cells(tmp_path / str(context)), weights).played()
        assert (f"games do not fit model.context={context}" in " ".join(capsys.readouterr().out.split())) == said


def test_a_table_is_of_one_temperature_and_of_whole_histories(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("experiments"))

    def found(only: str) -> set[str]:
        result = prepare("eval-gap", [run], SMALL, only=[only], training=False)(Progress(quiet=True))
        return {contrast["name"] for contrast in result["contrasts"]}

    assert found("sampled") == {"sampled"}
    assert found("few-games") == {"sampled", "few-games"}
    tiny.edit_config(run, "eval.temperature=0.3")
    assert found("train-to-dev") == {"train-to-dev"}
    tiny.edit_config(run, "policy.history=2")
    with pytest.raises(ConfigError, match=r"policy\.history=2"):
        found("sampled")


def test_a_stage_that_is_skipped_has_no_policy_to_examine(trained: Path, tmp_path: Path) -> None:
    """SFT without passes leaves a checkpoint all the same, of the base."""
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("experiments"))
    tiny.edit_config(run, "sft.epochs=0")
    with pytest.raises(ConfigError, match=r"has no sft weights: .*\n.*policy=base or policy=ppo"):
        prepare("eval-gap", [run], [*SMALL, "policy=sft"], only=["sampled"])(Progress(quiet=True))


def test_several_trainings_are_averaged(trained: Path, trained_again: Path, tmp_path: Path) -> None:
    names = ["sampled", "train-to-dev", "few-games"]
    alone = [prepare("eval-gap", [run], SMALL, only=names)(Progress(quiet=True)) for run in (trained, trained_again)]
    both = prepare("eval-gap", [trained, trained_again], SMALL, only=names, out=tmp_path)(Progress(quiet=True))
    assert both["seeds"] == [0, 1]
    found = {contrast["name"]: contrast for contrast in both["contrasts"]}
    assert set(found) == {"sampled", "train-to-dev"}  # what 20 games say of 8 is no mean
    for name, contrast in found.items():
        by_seed = [c["points"] for result in alone for c in result["contrasts"] if c["name"] == name]
        assert contrast["details"]["by_seed"] == pytest.approx(by_seed, abs=0.01)
        assert contrast["points"] == pytest.approx(np.mean(by_seed), abs=0.01)
        assert contrast["seeds"] == 2 and contrast["group"] == "evaluation"
    assert found["sampled"]["pairing"] == "2 trainings, paired on 8 games"
    text = (tmp_path / "over-trainings.md").read_text()
    assert "2 trainings, different games on each side" in text
    for run in (trained, trained_again):  # each has its own table, too
        assert (run / "experiments" / "eval-gap" / "eval-gap.md").exists()


def test_runs_that_are_not_of_one_kind_are_not_averaged(trained: Path, tmp_path: Path) -> None:
    def measure(*runs: Path, only: str = "sampled") -> None:
        prepare("eval-gap", runs, SMALL, only=[only])(Progress(quiet=True))

    with pytest.raises(ConfigError, match="named twice"):
        measure(trained, trained / ".." / trained.name)
    Run(tmp_path / "other", override(read_run_config(trained), ["ppo.clip=0.1"], 1))
    with pytest.raises(ConfigError, match=r"not trainings of one kind: ppo\.clip=0\.2 and 0\.1"):
        measure(trained, tmp_path / "other")
    Run(tmp_path / "corrected", override(read_run_config(trained), ["dagger.rounds=2"], 1))
    for pair in ((trained, tmp_path / "corrected"), (tmp_path / "corrected", trained)):
        with pytest.raises(ConfigError, match=r"not trainings of one kind: dagger\.rounds="):
            measure(*pair)
    Run(tmp_path / "scored", override(read_run_config(trained), ["policy.kind=score"], None))
    with pytest.raises(ConfigError, match=r"scored has policy\.kind=score, policy\.template=plain"):
        measure(tmp_path / "scored")
    shutil.copytree(trained, tmp_path / "copy", ignore=shutil.ignore_patterns("experiments"))
    with pytest.raises(DataError, match="has the same weights as another"):
        measure(trained, tmp_path / "copy")
    with pytest.raises(ConfigError, match="few-games: none of these can be averaged"):
        measure(trained, tmp_path / "copy", only="few-games")


def test_the_interval_of_several_trainings_on_other_games_covers_what_it_claims() -> None:
    rng, held = np.random.default_rng(0), 0
    for _ in range(300):
        skill_S, gap_S = rng.normal(0.6, 0.05, (3, 1)), rng.normal(0.1, 0.05, (3, 1))

        def cells(p_S1: np.ndarray, hardness_G: np.ndarray) -> list[Cell]:
            won_SG = rng.random((3, len(hardness_G))) < p_S1 + hardness_G
            return [_cell("a", [int(won) for won in row]) for row in won_SG]

        a, b = (rng.uniform(-0.3, 0.3, 80) for _ in range(2))
        low, high = other_games("x", "?", cells(skill_S, a), cells(skill_S - gap_S, b))["ci95"]
        held += low <= 10 <= high
    assert 0.93 <= held / 300 <= 1.0


def _first(cell: Cell) -> Cell:
    """One game of each problem."""
    return Cell(cell.name, {seed: won for seed, won in cell.won.items() if seed < 100}, {}, {}, game=cell.game)


def test_a_side_that_is_all_alike_leaves_open_what_it_does_of_one_training() -> None:
    """It was -1.0 to +3.0 over three trainings, and -23.3 to +5.4 of one."""
    few, many = _cell("a", [1] * 12), _cell("b", [1] * 99 + [0])
    alone = unpaired("x", "?", few, many, resamples=100)["ci95"]
    low, high = other_games("x", "?", [few] * 3, [many] * 3)["ci95"]
    assert low == pytest.approx(alone[0], abs=1) and high == pytest.approx(alone[1], abs=4)


def test_several_equal_trainings_are_no_surer_than_one_where_problems_differ_in_size() -> None:
    """Half the games are copies of four problems: as the mean is over games, so is what is uncertain of it."""
    rng = np.random.default_rng(0)

    def cell(name: str) -> Cell:
        won = {seed: bool(rng.integers(0, 2)) for seed in range(80)}
        copies = {seed + 100 * room: won[seed] for seed in range(4) for room in range(1, 20)}
        return Cell(name, won | copies, {}, {}, game="sorting")

    a, b = cell("a"), cell("b")
    alone, together = paired("x", "?", a, b, resamples=2000), crossed("x", "?", [a] * 3, [b] * 3)
    assert together["points"] == pytest.approx(alone["points"])
    once = paired("x", "?", _first(a), _first(b), resamples=2000)
    narrow, width, same = (found["ci95"][1] - found["ci95"][0] for found in (once, alone, together))
    assert same == pytest.approx(width, rel=0.25)
    assert same > 1.3 * narrow


def test_games_on_either_side_that_are_all_alike_prove_nothing_of_several_trainings_either() -> None:
    won, lost = _cell("a", [1] * 50), _cell("b", [0] * 50)
    found = other_games("x", "?", [won] * 2, [lost] * 2)["ci95"]
    assert found == unpaired("x", "?", won, lost, resamples=100)["ci95"]


@pytest.mark.slow
def test_contrasts_that_train_run(trained: Path) -> None:
    result = prepare("eval-gap", [trained], SMALL, only=list(TRAINING))(Progress(quiet=True))
    found = {contrast["name"]: contrast for contrast in result["contrasts"] if contrast["group"] == "training"}
    assert set(found) == set(TRAINING)
    assert all(contrast["seeds"] == 3 for contrast in found.values())
    # without dropout the ratio begins at 1; with it not, once the adapter is no longer 0
    without, with_dropout = found["dropout"]["details"]["first_gap"]
    assert without < 1e-5 < with_dropout


@pytest.mark.slow
def test_one_arm_trains_and_its_curve_is_kept(trained: Path) -> None:
    prepare("eval-gap", [trained], SMALL, only=["sampled"])(Progress(quiet=True))
    result = prepare("eval-gap", [trained], SMALL, only=["leak"])(Progress(quiet=True))
    contrast = next(contrast for contrast in result["contrasts"] if contrast["name"] == "leak")
    # what an earlier command has measured stays in the table, also at another size, but not of another policy
    assert {contrast["name"] for contrast in result["contrasts"]} >= {"leak", "sampled"}
    larger = prepare("eval-gap", [trained], [*SMALL, "games=10"], only=["few-games"])(Progress(quiet=True))
    assert {contrast["name"] for contrast in larger["contrasts"]} >= {"leak", "sampled", "few-games"}
    cloned = prepare("eval-gap", [trained], [*SMALL, "policy=sft"], only=["few-games"])(Progress(quiet=True))
    assert {contrast["name"] for contrast in cloned["contrasts"]} == {"few-games"}
    assert len(contrast["details"]["by_seed"]) == 3
    cell = next((trained / "experiments" / "eval-gap" / "cells").glob("arm-repaired-0-*.json"))
    extra = json.loads(cell.read_text())["extra"]
    assert all(row["kl_old"] > 0 for row in extra["metrics"])  # the policy has moved
    assert set(extra["curve"]) == {"0", "1", "2"} and len(extra["metrics"]) == 2
    assert all(len(row) == 6 for row in extra["curve"].values())


def test_the_rate_of_an_arm_rises_as_that_of_a_run(trained: Path) -> None:
    config = read_run_config(trained)
    moved = []
    for steps in (0, 1000):
        with open_session(Run(trained, config), config, Progress(quiet=True)) as session:
            session.config = override(config, [f"ppo.rate_warmup={steps}"], None)
            session.load("sft")
            start = {name: p.detach().clone() for name, p in session.model.named_parameters()}
            model, _ = PPOArm(session, Arm(), read_sizes(Settings, SMALL), 0, start).train()
        policy = {name: p.detach() for name, p in model.named_parameters() if name.startswith("lm.")}
        moved.append(sum(float((p - start[name]).abs().sum()) for name, p in policy.items()))
    assert 0 < moved[1] < 0.9 * moved[0]  # the first of four steps at half of the rate


def test_draws_depend_on_a_games_place_alone() -> None:
    policy, tasks = tiny.policy(), tiny.tasks(5)
    answer = writing(policy, Decoding(), most=4)
    one, three = (
        play_prompts(policy, [games.make("toy") for _ in range(count)], tasks, Style(), answer, context=512)
        for count in (1, 3)
    )
    assert [[t.action for t in e.turns] for e in one] == [[t.action for t in e.turns] for e in three]


def test_folds_of_a_game_without_gold_are_compared_as_they_are(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("experiments"))

    class Bare:
        def __init__(self, game: ToyGame) -> None:
            self.reset, self.step, self.close = game.reset, game.step, game.close

    monkeypatch.setattr(Session, "games", lambda _, count: [Bare(ToyGame()) for _ in range(count)])
    (contrast,) = prepare("eval-gap", [run], SMALL, only=["train-to-dev"])(Progress(quiet=True))["contrasts"]
    assert contrast["name"] == "train-to-dev" and "points_at_equal_gold_length" not in contrast["details"]
