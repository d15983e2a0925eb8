"""Names that many parts of the package share: stages, policies with a model, folds, kinds of policies, formats."""

from __future__ import annotations

from typing import Literal, get_args

TrainingStage = Literal["sft", "dagger", "ppo"]  # those that change weights; each names the policy that it leaves
StageName = Literal["demos", TrainingStage, "eval"]  # each builds on those before it
PolicyName = Literal["base", TrainingStage]
RunFold = Literal["train", "dev", "test"]  # without "pretrain", which only the embedded base was made from

TRAINING: tuple[TrainingStage, ...] = get_args(TrainingStage)
STAGES: tuple[StageName, ...] = get_args(StageName)
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
RUN_FOLDS: tuple[RunFold, ...] = get_args(RunFold)
# the setting of each that says how long it trains; at 0 it is skipped
LENGTHS: dict[str, str] = {"sft": "epochs", "dagger": "rounds", "ppo": "iterations"}
SWITCHES: dict[str, str] = {"demos": "games", **LENGTHS}  # at 0 the stage is left out
DEV_ROWS = {"dagger": "dagger_dev", "ppo": "dev"}  # under which name a stage logs what it measures on the dev fold
FURTHEST_FIRST = TRAINING[::-1]  # of several trained policies the first that is there counts
FREE_TEXT = ("write", "think")  # kinds of policies that write tokens of their own
FORMATS = ("float32", "bfloat16", "float16")  # of numbers
PLAYED_IN = "played_in"  # in files: the one of them in which a policy played its recorded game
