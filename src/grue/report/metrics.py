"""What each number in metrics.jsonl means, in one sentence. The report explains its curves from this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grue.names import TRAINING
from grue.report.text import redact

Group = Literal["games", "policy", "critic", "imitation", "optimiser", "health", "other"]
Kind = Literal["curve", "counter", "setting"]

GROUP_TITLES: dict[Group, str] = {
    "games": "Games",
    "policy": "Policy",
    "critic": "Critic",
    "imitation": "Imitation",
    "optimiser": "Optimiser",
    "health": "Speed and health",
    "other": "Other",
}


# null where all returns are equal, or where the game lists no actions: nothing is wrong then
MAY_BE_NULL = ("explained_variance", "baseline_explained_variance", "invalid")


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that a stage logs."""

    name: str
    title: str
    meaning: str  # one sentence
    group: Group
    unit: Literal["share", "nats", "seconds", "count", ""] = ""
    kind: Kind = "curve"  # a counter only grows or stays: it is stated, not plotted; a setting has no noise to smooth


_ALL = (
    # games
    Metric("success", "Success", "Share of finished games that were won.", "games", "share"),
    Metric("score", "Score", "Mean final score of a game; 1 is a win.", "games"),
    Metric("steps_mean", "Steps", "Mean number of actions until a game ended.", "games"),
    Metric("limit", "At the limit", "Share of games that ran into the step limit.", "games", "share"),
    Metric("lost", "Lost", "Share of games that a mistake ended.", "games", "share"),
    Metric("invalid", "Invalid actions", "Share of actions that the game did not list as valid.", "games", "share"),
    Metric("failed", "Failed games", "Games that crashed or grew too long for the model; no mean includes them.",
           "games", "count"),
    Metric("games", "Games", "Number of games that the means are over.", "games", "count", "counter"),
    # policy
    Metric("entropy", "Entropy", "Mean entropy of the action distribution at a turn; near 0 the policy no longer "
           "explores.", "policy", "nats"),
    Metric("forced", "Without a choice", "Share of turns at which a single action was left to choose, so that nothing "
           "else can be tried or learnt; policy.min_p decides what is left.", "policy", "share"),
    Metric("valid_nll", "Writing something else", "Negative log-probability, per turn, that free writing begins with "
           "one of the actions weighed (0 where one is left); measured with ppo.valid_coef above 0.", "policy", "nats"),
    Metric("kl_ref", "KL to the reference", "How far the policy has moved from the one that reinforcement learning "
           "started with, per turn.", "policy", "nats"),
    Metric("kl_old", "KL of the update", "How far the updates of one iteration moved the policy from the one that "
           "played its games, per turn.", "policy", "nats"),
    Metric("clip_fraction", "Clipped", "Share of turns whose probability ratio left the PPO clip range.", "policy",
           "share"),
    Metric("policy_loss", "Policy loss", "The clipped surrogate objective, negated; its level means little, a jump "
           "means trouble.", "policy"),
    Metric("entropy_coef", "Entropy coefficient", "Weight of the entropy bonus in the loss.", "policy",
           kind="setting"),
    Metric("loss", "Loss", "The total loss that was minimised.", "policy"),
    # critic
    Metric("value_loss", "Value loss", "Squared error of the critic's estimate of the return; with "
           "ppo.value_passes=0 half of it, clipped.", "critic"),
    Metric("explained_variance", "Explained variance", "Share of the variance of returns that the critic predicts; "
           "1 is perfect, 0 no better than the mean.", "critic"),
    Metric("baseline_explained_variance", "Explained variance, knowing the game", "The same for the baseline of the "
           "advantages, which also knows how hard each train game is.", "critic"),
    Metric("baseline_loss", "Baseline loss", "Squared error of that baseline.", "critic"),
    # imitation
    Metric("nll", "Loss without smoothing", "Cross-entropy of the teacher's choices where valid actions branch; with "
           "aligned and write, which learn text, of every token of its actions over the whole vocabulary.",
           "imitation", "nats"),
    Metric("accuracy", "Accuracy", "Share of the places where valid actions branch (with aligned and write: of all "
           "tokens learnt) at which the model ranks the teacher's choice first among what may follow.", "imitation",
           "share"),
    Metric("node_entropy", "Entropy", "Mean entropy of the model over what may follow, at the places that accuracy "
           "counts; what is left for exploration.", "imitation", "nats"),
    Metric("advised", "Advised", "Share of the policy's turns at which the teacher knew what to do.", "imitation",
           "share"),
    Metric("corrected", "Corrected", "Share of the advised turns at which the teacher would have done something else.",
           "imitation", "share"),
    # optimiser
    Metric("grad_norm", "Gradient norm", "Norm of the gradient before it is clipped.", "optimiser"),
    Metric("loss_scale", "Loss scale", "Factor of a float16 loss; halved after an overflow.", "optimiser",
           kind="setting"),
    Metric("skipped", "Skipped steps", "Share of steps left out because float16 overflowed.", "optimiser"),
    Metric("learning_rate", "Learning rate", "Step size of the optimiser.", "optimiser", kind="setting"),
    # health
    Metric("engine_gap", "Engine gap", "Mean absolute difference of log-probs between the engine that played and the "
           "pass that trained, over the turns of an iteration's first minibatch; it should stay near 0.",
           "health", "nats"),
    Metric("env_steps_per_s", "Steps per second", "Environment steps per second while games are collected.",
           "health"),
    Metric("turns_per_s", "Turns per second", "Turns trained on per second of updating.", "health"),
    Metric("updates", "Updates", "Optimiser steps of the iteration: fewer if the KL limit stopped the policy, none "
           "if only a separately fitted critic learnt.", "optimiser", "count"),
    Metric("passes", "Passes", "Passes over the iteration's games that were begun before the KL limit stopped the "
           "policy.", "optimiser", "count"),
    Metric("rollout_s", "Playing", "Wall time of playing the iteration's games.", "health", "seconds"),
    Metric("update_s", "Updating", "Wall time of learning from them.", "health", "seconds"),
    Metric("seconds", "Total time", "Wall time of the step.", "health", "seconds"),
    Metric("episodes", "Episodes", "Games played in the iteration.", "health", "count", "counter"),
    Metric("env_steps_trained", "Environment steps trained", "Turns that the stage has used so far.", "health",
           "count", "counter"),
)  # fmt: skip

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}

DECODINGS = ("greedy", "sampled", "scripted")

# Columns of the results table, in this order.
COLUMNS: dict[str, str] = {
    "success": "Share of finished games that were won, with its 95% interval.",
    "score": "Mean final score of a game, with its 95% bootstrap interval; 1 is a win.",
    "steps": "Mean number of actions until a game ended.",
    "limit": "Share of games that ran into the step limit.",
    "lost": "Share of games that ended in a loss.",
    "failed": "Games that crashed or grew too long for the model: counted here and nowhere else.",
    "invalid": "Share of actions that the game did not list as valid.",
    "tales": "Mean best score within the step limit, with the game restarted after each end: the metric of TALES.",
}

POLICY_MEANINGS: dict[str, str] = {
    "random": "picks a valid action uniformly at random",
    "explore": "knows what it has read and seen, as a policy does",
    "gold": "the game's own walkthrough",
    "gold-pruned": "the walkthrough without the steps that change nothing",
    "optimal": "knows what is hidden and plans its way: the shortest in cookingworld and toy, a good one elsewhere",
    "base": "the language model that the run began with, before SFT; grue's own has read games of TextWorldExpress",
    "sft": "after imitation of the teacher (supervised fine-tuning)",
    "dagger": "after imitation with the teacher's corrections of its own games",
    "ppo": "after proximal policy optimisation",
    "api": "a chat model behind an endpoint, which has not been trained here",
}

POLICY_TITLES: dict[str, str] = {"sft": "SFT", "dagger": "DAgger", "ppo": "PPO"}

# Rows of every table: players that no training has changed, then the stages of training.
UNTRAINED = ("random", "explore", "gold", "gold-pruned", "optimal", "base")
POLICY_ORDER = (*UNTRAINED, *TRAINING)


def policy_title(name: str) -> str:
    teacher = name.removesuffix("-omit")  # for replays of demonstrations, see games/omission.py
    return POLICY_TITLES.get(name, redact(name)) if teacher == name else f"{teacher}, with steps left out"


def policy_rank(name: str) -> tuple[int, str]:
    """Sort key: known policies in their order, others after them by name."""
    return (POLICY_ORDER.index(name) if name in POLICY_ORDER else len(POLICY_ORDER), name)


def split_name(name: str) -> tuple[str, str, str]:
    """(metric, decoding, bound): "success_greedy_lo" is ("success", "greedy", "lo"); absent parts are empty."""
    bound = next((end for end in ("lo", "hi") if name.endswith(f"_{end}")), "")
    core = name.removesuffix(f"_{bound}") if bound else name
    decoding = next((end for end in DECODINGS if core.endswith(f"_{end}")), "")
    return (core.removesuffix(f"_{decoding}") if decoding else core), decoding, bound


def lookup(name: str) -> Metric:
    """The metric of this name; one without a description is plotted under its own name."""
    return METRICS.get(name) or Metric(name, name.replace("_", " "), "", "other")
