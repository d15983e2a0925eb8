"""The stages of a run, each of which builds on those before it: demos, sft, dagger, ppo, eval."""

from grue.names import STAGES, StageName
from grue.stages.announce import plan
from grue.stages.runner import run_all, run_stage
from grue.stages.watching import watch

__all__ = ["STAGES", "StageName", "plan", "run_all", "run_stage", "watch"]
