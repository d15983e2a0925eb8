"""Intervals against scipy, numbers worked by hand, and properties that must hold for any data."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.errors import DataError
from grue.evaluate.bootstrap import bootstrap_mean, paired_difference, paired_wins
from grue.evaluate.stats import alike_interval, by_problem, smallest_detectable_difference, wilson, wilson_of_problems

# no deadlines: the first example pays for imports, and machines are shared
relaxed = settings(deadline=None, max_examples=50)
scores = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40)
counts = st.integers(0, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


# Wilson


def test_values_of_problems_have_the_mean_over_games() -> None:
    """Problems of one game and of three: a mean over problems would be another number than that over games."""
    found = by_problem(np.array([[1.0, 0, 0, 0], [1, 1, 1, 0]]), ["a", "b", "b", "b"])
    assert found.tolist() == [[0.625, -0.125], [0.875, 0.625]]
    assert found.mean(axis=1).tolist() == [0.25, 0.75]
    equal = by_problem(np.array([[1.0, 0, 0, 0]]), ["a", "b", "a", "b"])
    assert equal.tolist() == [[0.5, 0.0]]  # of equal size: their means


def test_one_game_that_ends_otherwise_makes_no_interval_narrower() -> None:
    """200 games of four problems, all won: as sure as four games. It was 98.5 to 100 % with 199 won."""
    posed = [number % 4 for number in range(200)]
    all_won = wilson_of_problems([1] * 200, posed)
    assert all_won == wilson(4, 4)
    low, high = wilson_of_problems([1] * 199 + [0], posed)
    assert (low, high) == (all_won.low, pytest.approx(1, abs=1e-3))
    assert wilson_of_problems([0] * 199 + [1], posed) == pytest.approx((1 - high, 1 - low))
    assert wilson_of_problems([1, 1, 0], ["one"] * 3).low < 0.1  # of one problem nothing is known of others


def test_problems_that_vary_by_chance_not_at_all_are_still_few() -> None:
    """Where two problems have equal shares the interval was [0.34, 0.66]; with one game more, [0.11, 0.90]."""
    posed, half = [number % 2 for number in range(100)], [number < 50 for number in range(100)]
    equal, nearly = wilson_of_problems(half, posed), wilson_of_problems([True, *half[1:50], True, *half[51:]], posed)
    assert equal == pytest.approx(nearly, abs=0.01)


@pytest.mark.parametrize(("problems", "size"), [(4, 50), (10, 20), (75, 3)])
def test_few_problems_are_covered_as_often_as_it_says(problems: int, size: int) -> None:
    """Percentiles of a bootstrap held the truth in 80, 90 and 92 of 100."""
    rng, held = np.random.default_rng(0), 0
    posed = np.repeat(np.arange(problems), size)
    for _ in range(400):
        solved = rng.beta(1.4, 0.6, problems)  # 70 % on average, some always and some never
        held += (found := wilson_of_problems(rng.random(len(posed)) < solved[posed], posed)).low <= 0.7 <= found.high
    assert held / 400 > 0.925


def test_wilson_by_hand() -> None:
    # k = 5, n = 10, z = 1.959964: centre (0.5 + z^2/20) / (1 + z^2/10) = 0.5,
    # half z sqrt(0.025 + z^2/400) / (1 + z^2/10) = 1.959964 * sqrt(0.0346036) / 1.384146 = 0.263407
    low, high = wilson(5, 10)
    assert low == pytest.approx(0.236593, abs=1e-6)
    assert high == pytest.approx(0.763407, abs=1e-6)


def test_wilson_at_the_ends() -> None:
    z2 = 1.959963984540054**2
    assert wilson(0, 50) == pytest.approx((0.0, z2 / (50 + z2)), abs=1e-12)  # closed form of the formula at k = 0
    assert wilson(50, 50) == pytest.approx((50 / (50 + z2), 1.0), abs=1e-12)
    assert wilson(0, 50).low == 0.0
    assert wilson(50, 50).high == 1.0
    assert wilson(0, 0) == (0.0, 1.0)


@relaxed
@given(counts)
def test_wilson_equals_scipy(case: tuple[int, int]) -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    successes, n = case
    if n == 0:
        return
    expected = scipy_stats.binomtest(successes, n).proportion_ci(0.95, method="wilson")
    assert wilson(successes, n) == pytest.approx((expected.low, expected.high), abs=1e-9)


@relaxed
@given(counts)
def test_wilson_holds_the_rate_and_mirrors(case: tuple[int, int]) -> None:
    successes, n = case
    low, high = wilson(successes, n)
    assert 0.0 <= low <= high <= 1.0
    if n:
        assert low <= successes / n <= high
    mirrored = wilson(n - successes, n)
    assert (low, high) == pytest.approx((1 - mirrored.high, 1 - mirrored.low), abs=1e-12)


@pytest.mark.parametrize(("successes", "n"), [(3, 2), (-1, 2)])
def test_wilson_refuses_the_impossible(successes: int, n: int) -> None:
    with pytest.raises(DataError):
        wilson(successes, n)


# Bootstrap


def test_bootstrap_mean_is_close_to_the_normal_interval() -> None:
    x = np.random.default_rng(1).normal(size=400)
    low, high = bootstrap_mean(x, 4000)
    half = 1.96 * x.std(ddof=1) / sqrt(400)
    assert low == pytest.approx(x.mean() - half, abs=0.01)
    assert high == pytest.approx(x.mean() + half, abs=0.01)


def test_bootstrap_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    intervals = [bootstrap_mean(rng.random(60), 400, rng) for _ in range(300)]
    covered = np.mean([low <= 0.5 <= high for low, high in intervals])
    assert 0.90 <= covered <= 0.985  # 0.95 with three standard errors of 0.0126


@pytest.mark.parametrize("clusters", [3, 5, 10, 30])
def test_means_of_few_clusters_are_covered_as_often_as_it_says(clusters: int) -> None:
    rng = np.random.default_rng(7)
    names = np.repeat(np.arange(clusters), 6).tolist()
    means = np.repeat(rng.normal(size=(500, clusters)), 6, axis=1)
    intervals = [bootstrap_mean(x + rng.normal(size=x.size), 1000, rng, clusters=names) for x in means]
    covered = np.mean([low <= 0 <= high for low, high in intervals])
    assert 0.91 <= covered <= 0.98  # plain percentiles: 0.73, 0.82, 0.91 and 0.92


@relaxed
@given(scores)
def test_bootstrap_mean_stays_inside_the_data_and_repeats(x: list[float]) -> None:
    low, high = bootstrap_mean(x, 1200)
    assert low <= high
    if len(x) >= 5:  # fewer have Student's interval, which knows no ends
        assert min(x) - 1e-9 <= low <= high <= max(x) + 1e-9
    assert (low, high) == bootstrap_mean(x, 1200)


def test_a_constant_has_no_width() -> None:
    assert bootstrap_mean([0.25] * 7, 100) == (0.25, 0.25)


def test_chunks_do_not_change_the_number_of_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grue.evaluate.bootstrap._CHUNK", 10)  # one resample a chunk
    low, high = bootstrap_mean(np.arange(100.0), 500)
    assert low < 49.5 < high


def test_clusters_widen_the_interval_by_the_root_of_their_size() -> None:
    # 50 games, each played 4 times with the same score: 200 values that are worth 50
    games = np.random.default_rng(3).random(50)
    x, names = np.repeat(games, 4), np.repeat(np.arange(50), 4).tolist()
    apart, together = bootstrap_mean(x, 4000), bootstrap_mean(x, 4000, clusters=names)
    ratio = (together.high - together.low) / (apart.high - apart.low)
    assert ratio == pytest.approx(2.0, rel=0.1)


def test_clusters_of_different_sizes_have_the_mean_of_their_games() -> None:
    """However many games the clusters drawn hold."""
    names = [0] + [1] * 9 + [2] * 3
    assert bootstrap_mean([0.7] * 13, 500, clusters=names) == pytest.approx((0.7, 0.7))


def test_clusters_of_one_change_nothing() -> None:
    x = np.random.default_rng(4).random(30)
    assert bootstrap_mean(x, 500) == pytest.approx(bootstrap_mean(x, 500, clusters=list(range(30))))


@pytest.mark.parametrize("x", [[], [[1.0]], [float("nan")], [float("inf"), 1.0]])
def test_bad_data_is_refused(x: list[float]) -> None:
    with pytest.raises(DataError):
        bootstrap_mean(x)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(DataError):
        bootstrap_mean([1.0], 0)
    with pytest.raises(DataError):
        bootstrap_mean([1.0, 2.0], clusters=["a"])


# Paired differences


def test_paired_difference_by_hand() -> None:
    # a - b = 1, 0, 0, 1, -1, 0, 1, 0 -> mean 2/8
    found = paired_difference([1, 1, 0, 1, 0, 0, 1, 1], [0, 1, 0, 0, 1, 0, 0, 1])
    assert found.value == 0.25
    # sample sd of the differences is sqrt((4 - 8/16) / 8) with n = 8 in the bootstrap: 0.661438 / sqrt(8) = 0.233854
    assert found.standard_error == pytest.approx(0.2339, abs=0.01)
    assert found.low < 0.25 < found.high


def test_pairing_removes_what_the_games_share() -> None:
    rng = np.random.default_rng(5)
    difficulty = rng.random(500)
    a, b = difficulty + 0.02 + rng.normal(0, 0.02, 500), difficulty + rng.normal(0, 0.02, 500)
    paired = paired_difference(a, b)
    unpaired = sqrt(a.var() / 500 + b.var() / 500)
    assert paired.low > 0.0
    assert paired.standard_error < unpaired / 5


@relaxed
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30))
def test_paired_difference_is_antisymmetric(pairs: list[tuple[float, float]]) -> None:
    a, b = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    forth, back = paired_difference(a, b, 200), paired_difference(b, a, 200)
    assert forth.value == pytest.approx(-back.value)
    assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low))


def test_games_that_all_end_alike_are_no_proof_of_certainty() -> None:
    # closed form of Wilson at 0 of n: z^2 / (n + z^2)
    z2 = 1.959963984540054**2
    assert paired_difference([1] * 5, [1] * 5)[1:3] == (0.0, 0.0)  # of scores, whose range nobody knows
    tied = paired_wins([1, 0, 1, 0, 1], [1, 0, 1, 0, 1])
    assert tied[:3] == pytest.approx((0.0, -z2 / (5 + z2), z2 / (5 + z2)))
    ahead = paired_wins([1] * 20, [0] * 20)
    assert ahead[:3] == pytest.approx((1.0, 1 - 2 * z2 / (20 + z2), 1.0))  # others could be -1, none above 1
    of_shares = paired_wins([0.75] * 20, [0.5] * 20)
    assert of_shares[:3] == pytest.approx((0.25, 0.25 - 1.25 * z2 / (20 + z2), 0.25 + 0.75 * z2 / (20 + z2)))
    copies = paired_wins([1] * 20, [1] * 20, clusters=[1, 2, 3, 4, 5] * 4)  # worth 5 games
    assert copies == pytest.approx(tied)
    # games that differ from each other, in problems that do not
    for a, b, problems in (([1, 0, 1], [0, 0, 0], "AAA"), ([1, 0, 1, 0], [0, 1, 0, 1], "AABB")):
        found = paired_wins(a, b, clusters=problems)
        assert found[1:3] == alike_interval(found.value, len(set(problems)))
        assert found.low < found.value < found.high


def test_one_game_that_differs_makes_no_difference_surer() -> None:
    alike, other = paired_wins([1] * 200, [1] * 200), paired_wins([1] * 200, [1] * 199 + [0])
    assert other.low < 0 and other.high - other.low >= 0.95 * (alike.high - alike.low)


def test_differences_of_few_games_are_covered_as_often_as_it_says() -> None:
    rng = np.random.default_rng(9)
    found = [paired_wins(np.ones(200), rng.random(200) >= 0.02, 300, rng) for _ in range(300)]
    assert np.mean([one.low <= 0.02 <= one.high for one in found]) >= 0.95  # the bootstrap alone: 0.91


def test_wins_that_differ_have_the_bootstrap() -> None:
    a, b = [1, 1, 0, 1, 0, 0, 1, 1, 0, 1], [0, 1, 0, 0, 1, 0, 0, 1, 1, 1]
    assert paired_wins(a * 6, b * 6) == paired_difference(a * 6, b * 6)
    names = [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert paired_wins(a, b, clusters=names) == paired_difference(a, b, clusters=names)
    wide = paired_difference([1, 1, 0], [0, 1, 1])  # three games have Student's interval, which passes the ends
    assert wide.low < -1 and wide.high > 1
    assert paired_wins([1, 1, 0], [0, 1, 1]) == wide._replace(low=-1.0, high=1.0)


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="3 and 2"):
        paired_difference([1, 2, 3], [1, 2])


# Smallest detectable difference


def test_detectable_difference_by_hand() -> None:
    # textbook: 0.50 against 0.65, 95 %, power 80 %:
    # n = (1.95996 sqrt(2 * 0.575 * 0.425) + 0.84162 sqrt(0.25 + 0.2275))^2 / 0.15^2 = 169.3
    assert smallest_detectable_difference(169, 0.5) == pytest.approx(0.15, abs=2e-4)


def test_detectable_difference_with_a_thousand_games() -> None:
    # unpaired 1,000 games at 50 %: 2.80 sqrt(2 * 0.25 / 1000) = 0.0626
    assert smallest_detectable_difference(1000, 0.5) == pytest.approx(0.0626, abs=2e-4)
    # correlation 0.75 halves it: about the 3 points for 1,000 questions of Miller (2024)
    assert smallest_detectable_difference(1000, 0.5, correlation=0.75) == pytest.approx(0.0313, abs=2e-4)


def test_detectable_difference_has_the_stated_power() -> None:
    n, p = 200, 0.9
    other = p - smallest_detectable_difference(n, p)
    rng = np.random.default_rng(7)
    a, b = rng.binomial(n, p, 4000) / n, rng.binomial(n, other, 4000) / n
    mean = (a + b) / 2
    found = np.abs(a - b) > 1.96 * np.sqrt(2 * mean * (1 - mean) / n)
    assert found.mean() == pytest.approx(0.8, abs=0.03)


@relaxed
@given(st.integers(1, 5000), st.floats(0, 1), st.floats(0, 0.95))
def test_detectable_difference_behaves(n: int, p: float, correlation: float) -> None:
    found = smallest_detectable_difference(n, p, correlation=correlation)
    assert 0.0 < found <= max(p, 1 - p) + 1e-12
    assert smallest_detectable_difference(4 * n, p, correlation=correlation) <= found + 1e-9
    assert found == pytest.approx(smallest_detectable_difference(n, 1 - p, correlation=correlation), abs=1e-6)


def test_perfect_play_does_not_make_small_samples_sharp() -> None:
    assert smallest_detectable_difference(50, 1.0) > 0.1  # the normal shortcut at p = 1 would say 0
    assert smallest_detectable_difference(1, 0.5) == pytest.approx(0.5)  # one game shows nothing


@pytest.mark.parametrize(("n", "p", "correlation"), [(0, 0.5, 0), (10, 1.5, 0), (10, 0.5, 1.0)])
def test_detectable_difference_refuses(n: int, p: float, correlation: float) -> None:
    with pytest.raises(DataError):
        smallest_detectable_difference(n, p, correlation=correlation)
