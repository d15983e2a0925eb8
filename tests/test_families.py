"""The families' presets: what they play, and that each goes through every stage in a very short run."""

from __future__ import annotations

from pathlib import Path

import pytest

from grue import stages
from grue.config import load_config
from grue.config.families import FAMILY_PRESETS
from grue.games import FAMILIES, canonical_params, make, tasks
from grue.games.play import play
from grue.games.teachers import teacher
from grue.games.training import renamer
from grue.progress import Progress

TRAINED = [name for name in FAMILY_PRESETS if not name.startswith("tales-")]
SHORT = (
    "demos.games=6 demos.replays=0 sft.epochs=1 ppo.iterations=2 ppo.warmup_iterations=1 ppo.episodes_per_iteration=6 "
    "ppo.minibatches=1 ppo.slots=6 ppo.dev_every=1 ppo.dev_games=4 "
    "eval.games=4 eval.side_games=0 eval.bootstrap=100 threads=1"
)


def test_every_family_has_a_preset_and_simonsays_one_from_memory() -> None:
    assert {load_config(name).game.name for name in TRAINED} == set(FAMILIES)
    assert load_config("simonsays-memory").game.params["memorization"] == 1


@pytest.mark.parametrize("name", TRAINED)
def test_what_not_all_games_have_is_asked_of_those_that_have_it(name: str) -> None:
    config = load_config(name)  # elsewhere PPO refuses these settings, and SFT finds nothing to rename
    named = renamer(config.game.name, config.game.params) is not None
    assert [config.sft.rename > 0, config.ppo.rename > 0] == [named] * 2
    assert config.ppo.hidden_state == (config.game.name == "cookingworld")


@pytest.mark.parametrize("name", TRAINED)
def test_the_limit_leaves_the_teacher_time(name: str) -> None:
    game = load_config(name).game
    seat = make(game.name, game.params)
    gold = teacher("gold", seat)
    chosen = tasks(game.name, game.params, "test", game.limit)[::50]
    episodes = [play(seat, task, gold) for task in chosen]
    seat.close()
    assert {episode.task.params for episode in episodes} == {canonical_params(game.name, game.params)}
    assert sum(episode.won for episode in episodes) >= 17  # of 20: in coin the teacher walks at random
    assert all(episode.turns[0].observation.goal for episode in episodes)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_a_preset_goes_through_every_stage(name: str, tmp_path: Path) -> None:
    config = load_config(name, SHORT.split())
    results = stages.run_all(config, tmp_path / name, say=Progress(quiet=True))
    assert set(results["policies"]) == {"random", "gold", "base", "sft", "ppo"}
    assert results["policies"]["gold"]["decoding"]["scripted"]["best_score"] > 0.7
    assert results["policies"]["ppo"]["decoding"]["greedy"]["games"] == 4
    assert (tmp_path / name / "report.html").exists()
