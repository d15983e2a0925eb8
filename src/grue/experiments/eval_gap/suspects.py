"""The suspects: which cells each contrast compares, by name. They are measured in the order given here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from grue.errors import ConfigError
from grue.experiments.cells import Cell
from grue.experiments.eval_gap.contrasts import Contrast, crossed, other_games, paired, unpaired
from grue.experiments.eval_gap.defects import Arm
from grue.experiments.eval_gap.few_games import chosen_on_what_is_reported, few_games
from grue.experiments.eval_gap.measure import Measure
from grue.experiments.eval_gap.prompts import Style
from grue.experiments.eval_gap.settings import Settings
from grue.games.known import is_one_game
from grue.progress import Progress

Suspect = Callable[[Measure], Contrast | None]  # None: too little was played for it


@dataclass(frozen=True)
class Pair:
    """A suspect that needs an existing run only: one policy, played in two ways or on two sets of games.

    `question` may name sizes of the experiment, such as {size.window}.
    """

    name: str
    question: str
    repaired: Callable[[Measure], Cell]
    defect: Callable[[Measure], Cell]
    details: Callable[[Measure], dict[str, Any]] = lambda _: {}
    same_games: bool = True

    def __call__(self, m: Measure) -> Contrast:
        compare, question = paired if self.same_games else unpaired, self.question.format(size=m.size)
        return compare(self.name, question, *self.cells(m), resamples=m.size.bootstrap, **self.details(m))

    def cells(self, m: Measure) -> tuple[Cell, Cell]:
        return self.repaired(m), self.defect(m)

    def over_trainings(self, cells: Sequence[tuple[Cell, Cell]], size: Settings) -> Contrast:
        """The contrast over the cells of several trainings."""
        ours, theirs = [a for a, _ in cells], [b for _, b in cells]
        question = self.question.format(size=size)
        if self.same_games:
            return crossed(self.name, question, ours, theirs, group="evaluation")
        return other_games(self.name, question, ours, theirs)


def _folds(name: str, question: str, one: str, other: str) -> Pair:
    def details(m: Measure) -> dict[str, Any]:
        strata = _at_equal_gold(m.played(one), m.played(other), m.gold_steps(one), m.gold_steps(other))
        return {} if strata is None else {"points_at_equal_gold_length": round(100 * strata, 3)}

    return Pair(name, question, lambda m: m.played(one), lambda m: m.played(other), details, same_games=False)


def _arms(name: str, question: str, repaired: Arm, defect: Arm) -> Suspect:
    def contrast(m: Measure) -> Contrast:
        pairs = [(m.ppo_arm(repaired, seed), m.ppo_arm(defect, seed)) for seed in range(m.size.seeds)]
        ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]

        def mean(cells: list[Cell], key: str) -> float:
            return round(float(np.mean([row[key] for cell in cells for row in cell.extra["metrics"]])), 5)

        details: dict[str, Any] = {
            "sampled": [round(float(np.mean([c.extra["sampled"] for c in cells])), 4) for cells in (ours, theirs)],
            "collection": [
                round(float(np.mean([c.extra["collection"] for c in cells])), 4) for cells in (ours, theirs)
            ],
            "first_gap": [mean(ours, "first_gap"), mean(theirs, "first_gap")],
            "first_clipped": [mean(ours, "first_clipped"), mean(theirs, "first_clipped")],
        }
        return crossed(name, question.format(size=m.size), ours, theirs, **details)

    return contrast


def _budget(m: Measure) -> int:
    """Tokens that half of the repaired pipeline's games exceed."""
    return max(32, int(m.played().extra["tokens_median"]))


def _cut(m: Measure, cut: Literal["oldest", "right", "left"]) -> Cell:
    return m.prompted(f"cut-{cut}", Style(budget=_budget(m), cut=cut))


def _everything(m: Measure) -> Cell:
    """Everything that a notebook's evaluation does to its prompts and actions."""
    style = Style(window=m.size.window, task_line=False, retokenise=True, budget=_budget(m), cut="right")
    return m.written("together", greedy=False, top_k=m.size.top_k, style=style)


def _demonstrations_cut(m: Measure) -> Contrast:
    pairs = [(m.sft_arm(seed, cut=False), m.sft_arm(seed, cut=True)) for seed in range(m.size.seeds)]
    ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    question = "demonstrations end at the step limit, before the meal is prepared (measured after SFT)"
    return crossed("demonstrations-cut", question, ours, theirs)


def _few(m: Measure) -> Contrast | None:
    cell, count = m.played(), m.size.few_games
    if cell.games < 2 * count:  # draws would hold nearly the same games, and so differ little
        m.session.say(
            f"few-games: skipped, as chance in {count} games shows in {2 * count} or more, not in {cell.games}"
        )
        return None
    return few_games(cell, count, resamples=m.size.bootstrap)


def _chosen(m: Measure) -> Contrast:
    curves: list[Mapping[int, Cell]] = [m.curve(seed) for seed in range(m.size.seeds)]
    return chosen_on_what_is_reported(curves, m.size.few_games, resamples=m.size.bootstrap)


EVALUATION: dict[str, Suspect] = {
    "remaining": Pair(
        "remaining",
        "sampled play of train games against greedy play of {size.fold} games",
        lambda m: m.played("train", greedy=False),
        lambda m: m.played(),
        lambda m: {
            "sampled_held_out": round(m.played(greedy=False).success, 4),
            "greedy_train": round(m.played("train").success, 4),
        },
        same_games=False,
    ),
    "sampled": Pair(
        "sampled",
        "actions are sampled instead of chosen greedily",
        lambda m: m.played(),
        lambda m: m.played(greedy=False),
    ),
    "train-to-dev": _folds("train-to-dev", "greedy on train games against greedy on dev games", "train", "dev"),
    "train-to-test": _folds("train-to-test", "greedy on train games against greedy on test games", "train", "test"),
    "layouts": _folds("layouts", "trained on against never trained on, train recipes", "train", "pretrain"),
    "recipes": _folds("recipes", "train recipes against dev recipes, layouts never trained on", "pretrain", "dev"),
    "extra-step": Pair(
        "extra-step",
        "the stock wrapper allows one step more than the prompt says",
        lambda m: m.played(),
        lambda m: m.extra_step(),
    ),
    "few-games": _few,
    "window": Pair(
        "window",
        "only the last {size.window} steps stay in the prompt",
        lambda m: m.played(),
        lambda m: m.prompted("window", Style(window=m.size.window)),
    ),
    "task-line": Pair(
        "task-line",
        "the task line is missing at one step of a windowed prompt",
        lambda m: m.prompted("window", Style(window=m.size.window)),
        lambda m: m.prompted("task-line", Style(window=m.size.window, task_line=False)),
    ),
    "retokenised": Pair(
        "retokenised",
        "the transcript is tokenised again as one text at every step",
        lambda m: m.played(),
        lambda m: m.prompted("retokenised", Style(retokenise=True)),
    ),
    "truncation-side": Pair(
        "truncation-side",
        "prompts that exceed their tokens lose their right end instead of their oldest steps",
        lambda m: _cut(m, "oldest"),
        lambda m: _cut(m, "right"),
        lambda m: {
            "left": round(_cut(m, "left").success, 4),
            "budget": _budget(m),
            "no_cut": round(m.played().success, 4),
        },
    ),
    "free-greedy": Pair(
        "free-greedy",
        "actions are written freely (greedy) instead of chosen among the valid ones",
        lambda m: m.played(),
        lambda m: m.written("free-greedy", greedy=True),
    ),
    "free-sampled": Pair(
        "free-sampled",
        "actions are written freely (sampled) instead of chosen among the valid ones",
        lambda m: m.played(greedy=False),
        lambda m: m.written("free-sampled", greedy=False),
    ),
    "top-k-free": Pair(
        "top-k-free",
        "free sampling keeps the top {size.top_k} tokens only",
        lambda m: m.written("free-sampled", greedy=False),
        lambda m: m.written("free-top-k", greedy=False, top_k=m.size.top_k),
    ),
    "top-k": Pair(
        "top-k",
        "choice among valid actions that are in the top {size.top_k} of the vocabulary",
        lambda m: m.played(greedy=False),
        lambda m: m.top_k_choice(),
    ),
    "together": Pair(
        "together",
        "window, missing task line, retokenised text, right cut and free sampling with top k, at once",
        lambda m: m.played(),
        _everything,
    ),
}

_NO_BOOTSTRAP, _LEAK = Arm("no-bootstrap", bootstrap=False), Arm("leak", leak=True)
TRAINING: dict[str, Suspect] = {
    "demonstrations-cut": _demonstrations_cut,
    "no-bootstrap": _arms("no-bootstrap", "GAE takes the next value as 0", Arm(), _NO_BOOTSTRAP),
    "leak": _arms("leak", "advantages leak into the episode before", Arm(), _LEAK),
    "no-bootstrap-and-leak": _arms(
        "no-bootstrap-and-leak",
        "both defects of the notebook's GAE at once",
        Arm(),
        Arm("no-bootstrap-and-leak", bootstrap=False, leak=True),
    ),
    "kl-to-old": _arms(
        "kl-to-old",
        "the KL penalty is measured against the policy before the update, not the reference",
        Arm("kl-reference", kl="reference"),
        Arm("kl-old", kl="old"),
    ),
    "top-k-play": _arms(
        "top-k-play",
        "collection samples from the top {size.top_k} tokens, log-probabilities ignore the cut",
        Arm(),
        Arm("top-k-play", top_k=True),
    ),
    "dropout": _arms(
        "dropout",
        "adapter dropout is on in the update and off in collection: ratios do not start at 1",
        Arm("lora", adapter=True),
        Arm("lora-dropout", adapter=True, dropout=True),
    ),
    "chosen-on-test": _chosen,
}


def wanted(only: tuple[str, ...], *, training: bool) -> dict[str, Suspect]:
    """The contrasts to measure. ConfigError for a name that does not exist."""
    every = EVALUATION | (TRAINING if training else {})
    if not only:
        return every
    for name in only:
        if name not in EVALUATION | TRAINING:
            raise ConfigError(f"there is no contrast {name!r}", hint=f"contrasts: {', '.join(EVALUATION | TRAINING)}")
    return {name: suspect for name, suspect in (EVALUATION | TRAINING).items() if name in only}


def fitting(
    suspects: Mapping[str, Suspect], game: str, say: Progress, *, demonstrations: bool = True
) -> dict[str, Suspect]:
    """Those that compare what they say they compare in `game`; says which are left out. ConfigError if none is left.

    `demonstrations`: has the run any?
    """
    lacks, names = "", set[str]()
    if is_one_game(game):
        lacks, names = "one story in all folds", {"layouts", "recipes", "remaining", "train-to-dev", "train-to-test"}
    elif game != "cookingworld":
        lacks, names = "no recipes of its own for each fold", {"layouts", "recipes"}
    if not demonstrations:
        lacks, names = " and ".join(filter(None, [lacks, "no demonstrations"])), {*names, "demonstrations-cut"}
    left = {name: suspect for name, suspect in suspects.items() if name not in names}
    if not left:
        raise ConfigError(f"nothing is left to measure: this run of {game} has {lacks}")
    if len(left) < len(suspects):
        say(f"left out, as this run of {game} has {lacks}: {', '.join(name for name in suspects if name in names)}")
    return left


def _at_equal_gold(a: Cell, b: Cell, a_gold: dict[int, int], b_gold: dict[int, int]) -> float | None:
    """a - b if a's games were as long as b's: within strata of the gold solution's length, weighted by b's games.

    None where a stratum of b has no game of a.
    """
    lengths = sorted(b_gold[seed] for seed in b.won if seed in b_gold)
    if not lengths or any(seed not in a_gold for seed in a.won):
        return None
    edges = np.unique(np.quantile(lengths, [0.25, 0.5, 0.75]))
    difference = 0.0
    for stratum in range(len(edges) + 1):
        a_wins = [won for seed, won in a.won.items() if np.searchsorted(edges, a_gold[seed]) == stratum]
        b_wins = [won for seed, won in b.won.items() if np.searchsorted(edges, b_gold.get(seed, 0)) == stratum]
        if b_wins and not a_wins:
            return None
        if b_wins:
            difference += len(b_wins) / b.games * (float(np.mean(a_wins)) - float(np.mean(b_wins)))
    return difference
