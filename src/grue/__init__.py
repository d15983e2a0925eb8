"""grue: train language-model policies for text games, and see how it is done.

from grue import load_policy
policy = load_policy("runs/cooking16-seed0")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grue.version import __version__ as __version__

if TYPE_CHECKING:
    from pathlib import Path

    from grue.rollout.player import PolicyPlayer


def load_policy(
    folder: str | Path, policy: str | None = None, *, base: str | None = None, greedy: bool = True, seed: int = 0
) -> PolicyPlayer:
    """The trained policy of a run directory or of an exported folder; `policy.act(observation)` names an action.

    `policy` is "base", "sft", "dagger" or "ppo", by default the furthest that the run has reached. `base` is where the
    model that it was trained from is now, if it was moved. Errors are those of `grue.errors`.
    """
    from grue.stages.trained import load_policy as load  # here, so that `import grue` stays light

    return load(folder, policy, base=base, greedy=greedy, seed=seed)
