"""Runs side by side: the statistics of several trainings, and what `grue compare` makes of run directories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from grue.cli.compare import show
from grue.cli.main import app
from grue.config import Config, dump_config, load_config
from grue.errors import ConfigError, DataError
from grue.evaluate.runs import compare_runs
from grue.evaluate.seeds import difference_over_seeds, gap_over_seeds, mean_over_seeds
from grue.evaluate.stats import t_quantile, wilson
from grue.evaluate.summary import summarise
from grue.progress import Progress
from grue.storage import episodes
from grue.storage.settled import used_settings
from grue.types import Episode, Observation, Outcome, Task

# Statistics


@pytest.mark.parametrize("degrees", [1, 1.7, 2, 3.3, 10, 200])
def test_quantiles_of_t_equal_scipys(degrees: float) -> None:
    assert t_quantile(degrees) == pytest.approx(scipy_stats.t.ppf(0.975, degrees), rel=1e-4)


def test_the_gap_between_games_by_hand() -> None:
    a_RG = np.array([[1.0, 1, 0, 1], [1.0, 0, 0, 1], [1.0, 1, 1, 1]])
    b_RH = np.array([[0.0, 1, 0, 0, 1], [0.0, 1, 0, 0, 0], [1.0, 1, 0, 0, 1]])
    found = gap_over_seeds(a_RG, b_RH)
    apart_R = a_RG.mean(1) - b_RH.mean(1)
    parts = [apart_R.var(ddof=1) / 3, a_RG.mean(0).var(ddof=1) / 4, b_RH.mean(0).var(ddof=1) / 5]
    degrees = sum(parts) ** 2 / sum(part**2 / free for part, free in zip(parts, (2, 3, 4), strict=True))
    assert found.value == pytest.approx(apart_R.mean())
    assert found.standard_error == pytest.approx(sum(parts) ** 0.5)
    assert found.high - found.value == pytest.approx(t_quantile(degrees) * sum(parts) ** 0.5)
    with pytest.raises(DataError, match="3 trainings on one side, 2 on the other"):
        gap_over_seeds(a_RG, b_RH[:2])


def test_the_mean_over_seeds_by_hand() -> None:
    # trainings' means 0.25 and 0.75: variance 1/8 of one, 1/16 of their mean, 1 degree of freedom
    # games' means 1/2, 1/2, 1, 0: variance 1/6 of one, 1/24 of their mean, 3 degrees
    found = mean_over_seeds(np.array([[0.0, 0, 1, 0], [1.0, 1, 1, 0]]))
    assert found.value == 0.5
    assert found.standard_error == pytest.approx((1 / 16 + 1 / 24) ** 0.5)
    degrees = (1 / 16 + 1 / 24) ** 2 / ((1 / 16) ** 2 / 1 + (1 / 24) ** 2 / 3)
    assert found.high - 0.5 == pytest.approx(scipy_stats.t.ppf(0.975, degrees) * found.standard_error, rel=1e-4)
    assert 0.5 - found.low == pytest.approx(found.high - 0.5)


def drawn(rng: np.random.Generator, hard_G: np.ndarray, trainings: int, skill: float) -> np.ndarray:
    """Wins of trainings that differ in skill, on games that differ in hardness."""
    skill_R = skill + rng.normal(0, 0.6, size=trainings)
    return (rng.random((trainings, len(hard_G))) < 1 / (1 + np.exp(hard_G[None] - skill_R[:, None]))).astype(float)


def test_intervals_cover_what_other_seeds_and_games_would_give() -> None:
    rng = np.random.default_rng(0)
    many = rng.normal(0, 1.5, size=4000)
    truth = [float(drawn(rng, many, 400, skill).mean()) for skill in (1.0, 1.5)]
    mean, apart, games_alone = [], [], []
    for _ in range(400):
        hard_G = rng.normal(0, 1.5, size=120)
        a, b = drawn(rng, hard_G, 3, 1.0), drawn(rng, hard_G, 3, 1.5)
        found = mean_over_seeds(a)
        mean.append(found.low <= truth[0] <= found.high)
        found = difference_over_seeds(b, a)
        apart.append(found.low <= truth[1] - truth[0] <= found.high)
        half = 1.96 * a.mean(axis=0).std(ddof=1) / 120**0.5
        games_alone.append(abs(a.mean() - truth[0]) <= half)
    assert 0.93 < np.mean(mean) <= 1
    assert 0.93 < np.mean(apart) <= 1
    assert np.mean(games_alone) < 0.85  # who leaves the seeds out claims too much


def test_what_is_known_of_one_training_is_not_an_interval_over_seeds() -> None:
    with pytest.raises(DataError, match="1 trainings"):
        mean_over_seeds(np.zeros((1, 5)))
    with pytest.raises(DataError, match="1 games"):
        mean_over_seeds(np.zeros((2, 1)))
    with pytest.raises(DataError, match="the same games"):
        difference_over_seeds(np.zeros((2, 4)), np.zeros((2, 5)))


# Run directories


def run(
    out: Path,
    seed: int,
    won: Sequence[bool],
    *settings: str,
    policy: str = "ppo",
    sampled: bool = False,
    state: str = "done",
) -> Path:
    """A run directory with what an evaluation leaves: how each game ended."""
    config: Config = load_config("toy", overrides=settings, seed=seed)
    (out / "episodes").mkdir(parents=True)
    (out / "config.yaml").write_text(dump_config(config))
    (out / "stages.json").write_text(json.dumps({"eval": {"state": state, "seconds": 1.0}}))
    for decoding in ("greedy", "sampled")[: 1 + sampled]:
        played = [episode(config, number, Outcome.WON if w else Outcome.LIMIT) for number, w in enumerate(won)]
        episodes.append(out / "episodes" / f"eval-{policy}-test-{decoding}.jsonl", played)
    return out


def episode(config: Config, number: int, outcome: Outcome) -> Episode:
    score = 1.0 if outcome is Outcome.WON else 0.5
    task = Task(config.game.name, "", "test", 20000 + number, config.game.limit)
    return Episode(task, "ppo", (), outcome, Observation("", "", "", None, score))


def test_runs_that_differ_in_the_seed_alone_are_trainings_of_one_kind(tmp_path: Path) -> None:
    outs = [
        run(tmp_path / "a0", 0, [True, True, False, False], sampled=True),
        run(tmp_path / "a1", 1, [True, True, True, False]),
        run(tmp_path / "b0", 0, [True, True, True, True], "ppo.kl_coef=0.5", "eval.side_games=7"),
        run(tmp_path / "b1", 1, [True, True, True, False], "ppo.kl_coef=0.5", "threads=1"),
    ]
    found = compare_runs(outs)
    assert (found["policy"], found["fold"], found["games"]) == ("ppo", "test", {"greedy": 4})
    a, b = found["kinds"]
    assert (list(a["settings"]), b["settings"]) == (["ppo.kl_coef"], {"ppo.kl_coef": 0.5})
    assert [row["greedy"]["success"] for row in a["runs"] + b["runs"]] == [0.5, 0.75, 1.0, 0.75]
    assert [row["seed"] for row in b["runs"]] == [0, 1]
    assert (a["greedy"]["success"], a["greedy"]["score"]) == (0.625, 0.8125)
    assert mean_over_seeds(np.array([[1.0, 1, 0, 0], [1.0, 1, 1, 0]])).low < 0
    assert a["greedy"]["success_ci95"] == pytest.approx([0, 1], abs=1e-6)
    (apart,) = found["differences"]
    assert (apart["a"], apart["b"], apart["greedy"]["success"]) == (1, 0, 0.25)
    expected = difference_over_seeds(np.array([[1.0, 1, 1, 1], [1, 1, 1, 0]]), np.array([[1.0, 1, 0, 0], [1, 1, 1, 0]]))
    assert apart["greedy"]["success_ci95"] == pytest.approx([expected.low, expected.high], abs=1e-6)
    assert apart["greedy"]["over_seeds"]


def test_only_games_that_all_finished_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = run(tmp_path / "0", 0, [True, False, True]), run(tmp_path / "1", 1, [True, False])
    crashed = episode(load_config("toy"), 2, Outcome.FAILED)
    episodes.append(other / "episodes" / "eval-ppo-test-greedy.jsonl", [crashed])
    found = compare_runs([one, other])
    assert (found["games"], found["left_out"]) == ({"greedy": 2}, {"greedy": 1})
    assert found["kinds"][0]["greedy"]["success"] == 0.5
    show(found, Progress())
    assert "1 game is left out, which not all of these runs finished: they finished 2 and 3" in capsys.readouterr().out


def test_one_training_has_the_intervals_of_its_own_table(tmp_path: Path) -> None:
    (kind,) = compare_runs([run(tmp_path / "0", 0, [True] * 9 + [False])])["kinds"]
    assert kind["greedy"]["success_ci95"] == pytest.approx([0.595850, 0.982124], abs=1e-6)  # Wilson's of 9 in 10
    assert kind["greedy"]["over_seeds"] is False
    out = run(tmp_path / "1", 3, [n % 7 < 4 for n in range(401)], "eval.bootstrap=200")
    (kind,) = compare_runs([out])["kinds"]
    played = list(episodes.read(out / "episodes" / "eval-ppo-test-greedy.jsonl"))
    assert kind["greedy"]["score_ci95"] == summarise(played, fold="test", bootstrap=200)["score_ci95"]
    assert kind["greedy"]["score_ci95"] != summarise(played, fold="test")["score_ci95"]  # of 2000 resamples


def test_equal_scores_are_no_certainty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outs = [run(tmp_path / f"{n}", n, [False] * 10, f"ppo.iterations={5 + n}") for n in range(2)]
    show(compare_runs(outs), Progress())
    said = capsys.readouterr().out
    assert "score 0.000\n" in said and "0.500 to 0.500" not in said


def test_settings_that_were_not_used_are_not_compared(tmp_path: Path) -> None:
    out = run(tmp_path / "0", 0, [True, False])
    (out / "settings.json").write_text(json.dumps(used_settings(load_config("toy", ["sft.learning_rate=0.5"]))))
    with pytest.raises(ConfigError, match=r"edited after the run had used it: sft\.learning_rate \(0\.5 there"):
        compare_runs([out])


def test_weights_of_an_unfinished_training_are_said_to_be_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outs = [run(tmp_path / f"{n}", n, [True, False]) for n in range(2)]
    stages = {"ppo": {"state": "begun", "seconds": 1.0}, "eval": {"state": "done", "seconds": 1.0}}
    (outs[1] / "stages.json").write_text(json.dumps(stages))
    found = compare_runs(outs)
    assert found["unfinished"] == [str(outs[1])]
    show(found, Progress())
    assert f"grue run {outs[1]} goes on" in capsys.readouterr().out.replace("\n", " ")
    early = [run(tmp_path / f"sft{n}", n, [True, False], policy="sft") for n in range(2)]
    (early[1] / "stages.json").write_text(json.dumps(stages))
    assert compare_runs(early)["unfinished"] == []  # SFT is


def test_the_mean_is_over_games_where_problems_differ_in_size(tmp_path: Path) -> None:
    """As in the table of each run; the interval is over problems. It was a mean over problems, 2/3 here."""
    won = [True] * 100 + [number % 3 == 0 for number in range(50)]  # fifty problems twice, whose second games are hard
    outs = [run(tmp_path / f"{n}", n, won[n:] + won[:n], "game.name=sorting") for n in range(2)]
    table = summarise(list(episodes.read(outs[0] / "episodes" / "eval-ppo-test-greedy.jsonl")), fold="test")
    assert (table["success"], table["problems"]) == (round(117 / 150, 6), 100)
    (alone,) = compare_runs(outs[:1])["kinds"]
    assert alone["greedy"]["success"] == table["success"]
    assert alone["greedy"]["success_ci95"] == table["success_ci95"]
    (both,) = compare_runs(outs)["kinds"]
    assert [row["greedy"]["success"] for row in both["runs"]] == [table["success"]] * 2
    assert both["greedy"]["success"] == table["success"] and both["greedy"]["over_seeds"]


def test_trainings_that_agree_in_every_game_are_no_surer_than_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outs = [run(tmp_path / f"{n}", n, [True] + [False] * 31) for n in range(3)]
    alone, together = (compare_runs(members)["kinds"][0]["greedy"] for members in (outs[:1], outs))
    assert together == alone and not together["over_seeds"]
    with pytest.raises(SystemExit):
        app(["compare", *map(str, outs)])
    assert "The runs agree in every game: 95 % intervals over games, as for one run." in capsys.readouterr().out


def test_one_lost_game_makes_nobody_surer(tmp_path: Path) -> None:
    outs = [run(tmp_path / f"{n}", n, [True] * 199 + [n > 0]) for n in range(3)]
    low, high = compare_runs(outs)["kinds"][0]["greedy"]["success_ci95"]
    assert low == pytest.approx(wilson(200, 200).low, abs=1e-6) and high == 1


def test_one_problem_says_little_however_often_it_was_trained_on(tmp_path: Path) -> None:
    """Two rooms with one problem of `sorting`."""
    outs = [run(tmp_path / f"{n}", n, [n > 0] + [True] * 100, "game.name=sorting") for n in range(2)]
    for out in outs:
        file = out / "episodes" / "eval-ppo-test-greedy.jsonl"
        one = [game for game in episodes.read(file) if game.task.seed % 100 == 0]
        file.unlink()
        episodes.append(file, one)
    found = compare_runs(outs)["kinds"][0]["greedy"]
    low, high = found["success_ci95"]
    assert high - low > 0.5 and not found["over_seeds"]


def test_all_won_is_no_certainty(tmp_path: Path) -> None:
    outs = [run(tmp_path / f"{n}", n % 2, [True] * 10, f"ppo.iterations={5 + n // 2}") for n in range(4)]
    found = compare_runs(outs)
    assert found["kinds"][0]["greedy"]["success_ci95"] == pytest.approx([0.722467, 1.0], abs=1e-6)  # of 10 in 10
    low, high = found["differences"][0]["greedy"]["success_ci95"]
    assert low < 0 < high


def test_one_problem_bounds_no_score_and_is_no_agreement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outs = [run(tmp_path / f"{n}", n, [True, n > 0] * 2, "game.name=sorting") for n in range(2)]
    for out in outs:
        file = out / "episodes" / "eval-ppo-test-greedy.jsonl"
        same = [
            replace(game, task=replace(game.task, seed=20000 + 100 * n)) for n, game in enumerate(episodes.read(file))
        ]
        file.unlink()
        episodes.append(file, same)
    found = compare_runs(outs)
    assert found["kinds"][0]["greedy"]["score_ci95"] == [0.0, 1.0]
    show(found, Progress())
    said = capsys.readouterr().out
    assert "All of these games pose one problem" in said and "agree in every game" not in said


def test_no_score_is_below_the_range(tmp_path: Path) -> None:
    outs = [run(tmp_path / f"{n}", n, [n > 0] * 9 + [True]) for n in range(2)]
    low, high = compare_runs(outs)["kinds"][0]["greedy"]["score_ci95"]
    assert low == 0 and high == 1


def test_no_difference_of_scores_is_beyond_the_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost, won = [False] * 9 + [True], [True] * 10
    outs = [run(tmp_path / f"a{n}", n, lost if n else won) for n in range(2)]
    outs += [run(tmp_path / f"b{n}", n, won if n else lost, "ppo.kl_coef=0.5") for n in range(2)]
    (apart,) = compare_runs(outs)["differences"]
    assert apart["greedy"]["over_seeds"] and apart["greedy"]["score_ci95"] == [-1, 1]
    singles = [run(tmp_path / "c", 0, [True, True, False]), run(tmp_path / "d", 0, [False] * 3, "ppo.kl_coef=0.5")]
    (apart,) = compare_runs(singles)["differences"]
    assert not apart["greedy"]["over_seeds"] and max(map(abs, apart["greedy"]["score_ci95"])) == 1
    show(compare_runs(outs[:1]), Progress())
    assert "says nothing about other seeds" in capsys.readouterr().out
    show(compare_runs([run(tmp_path / "base", 0, won, policy="base")], "base"), Progress())
    assert "seeds" not in capsys.readouterr().out  # it was not trained


def test_settings_of_a_stage_of_no_length_do_not_divide(tmp_path: Path) -> None:
    outs = [run(tmp_path / f"{n}", n, [True, False], f"dagger.dev_games={20 + n}") for n in range(2)]
    assert len(compare_runs(outs)["kinds"]) == 1
    used = ("dagger.rounds=1", "dagger.dev_games=20"), ("dagger.rounds=0",), ("dagger.rounds=1", "dagger.dev_games=30")
    outs = [run(tmp_path / f"used{n}", n, [True, False], *settings) for n, settings in enumerate(used)]
    kinds = compare_runs(outs)["kinds"]
    assert [kind["settings"] for kind in kinds] == [{"dagger.rounds": 1}, {"dagger.rounds": 0}, {"dagger.rounds": 1}]


def test_a_run_that_lost_how_far_it_has_come_is_not_sent_to_be_evaluated(tmp_path: Path) -> None:
    out = run(tmp_path / "a", 0, [True, False])
    (out / "stages.json").unlink()
    with pytest.raises(DataError, match=r"stages\.json is missing"):
        compare_runs([out])


def test_settings_of_later_stages_do_not_divide_sft(tmp_path: Path) -> None:
    outs = [run(tmp_path / f"{n}", n, [True, False], f"ppo.kl_coef=0.{n + 1}", policy="sft") for n in range(2)]
    found = compare_runs(outs)
    assert (found["policy"], len(found["kinds"])) == ("sft", 1)
    assert compare_runs(outs, "sft") == found


def test_sampled_play_at_another_temperature_is_of_another_kind(tmp_path: Path) -> None:
    hot = ("ppo.temperature=2.0", "ppo.temperature=1.0")
    greedy, sampled = (
        [run(tmp_path / f"{s}{n}", n, [True, False], hot[n], policy="sft", sampled=s) for n in range(2)]
        for s in (False, True)
    )
    assert len(compare_runs(greedy)["kinds"]) == 1
    assert [kind["settings"] for kind in compare_runs(sampled)["kinds"]] == [
        {"eval.temperature": 2.0},
        {"eval.temperature": 1.0},
    ]


def test_an_algorithm_of_ones_own_is_of_another_kind(tmp_path: Path) -> None:
    outs = [run(tmp_path / f"r{number}", number, [True, False, True]) for number in range(3)]
    stages = outs[1] / "stages.json"
    ppo = {"ppo": {"state": "done", "seconds": 1.0, "algorithm": "rloo"}}
    stages.write_text(json.dumps(json.loads(stages.read_text()) | ppo))
    ours, own = compare_runs(outs)["kinds"]
    assert (len(ours["runs"]), len(own["runs"])) == (2, 1)
    assert (ours["settings"], own["settings"]) == ({"algorithm": "grue's"}, {"algorithm": "rloo"})


def test_a_policy_that_is_not_the_last_of_a_run_is_said_to_be_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outs = [run(tmp_path / "ppo", 0, [True, False]), run(tmp_path / "sft", 0, [False, False], policy="sft")]
    for out in outs:
        config = load_config("toy")
        played = [episode(config, number, Outcome.LIMIT) for number in range(2)]
        episodes.append(out / "episodes" / "eval-base-test-greedy.jsonl", played)
    with pytest.raises(SystemExit):
        app(["compare", *map(str, outs)])
    said = capsys.readouterr().out
    assert "base, 2 test games" in said
    assert f"that all of these runs have measured: {outs[0]} has ppo, {outs[1]} has sft" in said.replace("\n", " ")
    assert "more than once" not in said  # nothing was trained
    assert compare_runs([outs[0]])["further"] == {str(outs[0]): []}


def test_what_cannot_be_compared_is_one_error(tmp_path: Path) -> None:
    good = run(tmp_path / "good", 0, [True, False])
    with pytest.raises(ConfigError, match="named twice"):
        compare_runs([good, tmp_path / "x" / ".." / "good"])
    with pytest.raises(DataError, match="has not been evaluated") as caught:
        compare_runs([good, run(tmp_path / "begun", 1, [True], state="begun")])
    assert caught.value.hint.startswith("grue run")
    with pytest.raises(DataError, match=r"test games of the same policy \(.*good: ppo; .*other: sft\)"):
        compare_runs([good, run(tmp_path / "other", 1, [True, False], policy="sft")])
    with pytest.raises(DataError, match=r"dev games of ppo \(.*good: none\)"):
        compare_runs([good], "ppo", "dev")
    with pytest.raises(DataError, match="no finished games in common") as caught:
        compare_runs([good, run(tmp_path / "long", 1, [True, False], "game.limit=99")])
    assert "step limit" in caught.value.hint
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="not a run directory"):
        compare_runs([good, tmp_path / "empty"])


def test_grue_compare_prints_tables_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outs = [run(tmp_path / f"{n}", n // 2, [True, True, n > 1, n > 2], f"ppo.kl_coef=0.{1 + n % 2}") for n in range(4)]
    outs.append(run(tmp_path / "alone", 0, [True, False, True, False], "ppo.kl_coef=0.3"))
    with pytest.raises(SystemExit) as left:
        app(["compare", *map(str, outs)])
    assert left.value.code == 0
    shown = capsys.readouterr()
    assert "ppo, 4 test games" in shown.out
    lines = [line.split() for line in shown.out.splitlines()]
    assert ["A", "ppo.kl_coef=0.1"] in lines and ["C", "ppo.kl_coef=0.3"] in lines
    assert ["mean", "of", "2", "62.5%", "0.0", "to", "100.0", "0.812"] in [line[:8] for line in lines]
    assert "B - A  greedy: success +12.5 points" in shown.out
    assert "85 to 88 % hold the truth" in shown.out
    assert "a single training" in shown.out
    with pytest.raises(SystemExit):
        app(["compare", "--json", *map(str, outs)])
    assert json.loads(capsys.readouterr().out) == compare_runs(outs)


def test_games_that_were_measured_and_are_lost_are_missed(tmp_path: Path) -> None:
    out = run(tmp_path / "run", 0, [True, False], policy="sft")
    result = {"fold": "test", "games": 2, "failed": 0, "seeds": [20000, 20001], "success": 0.5, "score": 0.7}
    result["success_ci95"] = [0, 1]
    (out / "evaluation.jsonl").write_text(json.dumps({"row": "eval-ppo-test-greedy", "result": result}) + "\n")
    with pytest.raises(DataError, match=r"eval-ppo-test-greedy\.jsonl holds 0 of the 2 games"):
        compare_runs([out])
