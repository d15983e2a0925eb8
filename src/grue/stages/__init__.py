"""The stages of a run, in the order in which one builds on the other: demos, sft, dagger, ppo, eval, report."""

from grue.stages.announce import plan
from grue.stages.runner import STAGES, StageName, run_all, run_stage
from grue.stages.watching import watch

__all__ = ["STAGES", "StageName", "plan", "run_all", "run_stage", "watch"]
