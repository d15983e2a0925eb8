"""Stable-Baselines3 plays a game of TextWorldExpress: MaskablePPO on coin collector in five rooms.

    pip install -c constraints.txt -e '.[sb3]'
    python examples/sb3_coin.py [STEPS]

Trains on train games and prints the share of plays of dev games won before and after, the actions drawn from the
policy. Before training it is nearly random over the valid actions. With the default of 50,000 steps it printed these
lines among others:

    before: 37.5% of 200 plays of dev games
    after 51200 steps in ...: 81.0%
"""

import sys
import time

import torch
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from grue.wrappers import sb3

ENVIRONMENTS = 8
PLAYS = 200  # games are drawn with replacement


def main(steps: int) -> None:
    torch.set_num_threads(1)
    actions = sb3.environment("grue/Coin-v0").actions
    print(f"{len(actions)} actions: {', '.join(actions)}")
    train = DummyVecEnv([lambda: Monitor(sb3.environment("grue/Coin-v0", actions=actions))] * ENVIRONMENTS)
    dev = Monitor(sb3.environment("grue/Coin-v0", actions=actions, fold="dev"))
    train.seed(0)
    model = sb3.maskable_ppo(
        train, seed=0, n_steps=256, batch_size=256, n_epochs=4, learning_rate=1e-3, gamma=0.95, ent_coef=0.01
    )

    def success() -> float:
        dev.reset(seed=1)  # the same games each time
        rewards, _ = evaluate_policy(model, dev, PLAYS, deterministic=False, return_episode_rewards=True)
        return sum(reward > 0.99 for reward in rewards) / PLAYS

    print(f"before: {success():.1%} of {PLAYS} plays of dev games")
    start = time.monotonic()
    model.learn(steps)
    print(f"after {model.num_timesteps} steps in {time.monotonic() - start:.0f} s: {success():.1%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
