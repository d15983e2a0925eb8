"""DAgger between SFT and PPO: games that a teacher corrects, what is learnt from them, and what a run then holds."""

from __future__ import annotations

import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from grue import stages
from grue.config import Config, override
from grue.errors import CheckpointError, ConfigError, DataError, GameError, ModelError, TrainingError
from grue.progress import Progress
from grue.rollout.pack import Sample
from grue.stages.lessons import lessons
from grue.stages.session import open_session
from grue.storage import checkpoint, episodes, jsonl
from grue.storage.contents import read_metrics, read_stages
from grue.storage.run import Run
from grue.train.dagger import Lessons, _corrections, _drawn, _learn
from grue.train.learner import Learner
from grue.train.save_points import SavePoints
from grue.types import Episode, Outcome, Turn

QUIET = Progress(quiet=True)
SETTINGS = (
    "dagger.rounds=2",
    "dagger.games_per_round=8",
    "dagger.slots=8",
    "dagger.steps=4",
    "dagger.episodes_per_batch=8",
    "dagger.dev_games=4",
    "ppo.iterations=1",
    "ppo.warmup_iterations=0",
)


@pytest.fixture(scope="module")
def config(tiny_folder: Path) -> Config:
    return tiny.config(tiny_folder, *SETTINGS)


@pytest.fixture(scope="module")
def finished(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "done"
    stages.run_all(config, out, say=QUIET)
    return out


def test_a_run_has_corrected_games_their_rows_and_their_policy(finished: Path) -> None:
    played = list(episodes.read(finished / "episodes" / "dagger.jsonl"))
    assert len(played) == 16
    assert len({episode.task.seed for episode in played[:8]}) == 8
    assert {episode.task.fold for episode in played} == {"train"}
    rows = read_metrics(finished, "dagger")
    assert [row["step"] for row in rows] == [1, 2]
    assert [row["env_steps_trained"] for row in rows] == [sum(e.steps for e in part) for part in (played[:8], played)]
    turns = [turn for episode in played[:8] for turn in episode.turns]
    assert rows[0]["advised"] == 1
    assert rows[0]["corrected"] == pytest.approx(sum(turn.advice != turn.action for turn in turns) / len(turns))
    assert [row["step"] for row in read_metrics(finished, "dagger_dev")] == [0, 1, 2]
    results = json.loads((finished / "results.json").read_text())
    assert list(results["policies"]) == ["random", "gold", "base", "sft", "dagger", "ppo"]
    assert [(pair["a"], pair["b"]) for pair in results["paired"]] == [
        ("ppo", name) for name in ("base", "sft", "dagger", "gold")
    ]
    assert set(results["stages"]) == {"demos", "sft", "dagger", "ppo", "eval"}
    greedy = {name: entry["decoding"].get("greedy", {}) for name, entry in results["policies"].items()}
    trained = {name: row.get("env_steps_trained") for name, row in greedy.items()}
    assert trained["base"] == trained["sft"] == 0 < trained["dagger"] < trained["ppo"]
    page = (finished / "report.html").read_text()
    assert "Corrected imitation (DAgger)" in page
    assert "corrections of its own games" in page


def test_taken_up_from_an_older_checkpoint_later_rounds_are_played_anew(
    finished: Path, config: Config, tmp_path: Path
) -> None:
    """Their games were played by weights that are gone."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    file = out / "episodes" / "dagger.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:8], *lines[:8]]))  # a second round of other games
    shutil.rmtree(out / "checkpoints" / "dagger")
    begun = json.loads((out / "stages.json").read_text())
    (out / "stages.json").write_text(json.dumps({**begun, "dagger": {"state": "begun"}}))
    stages.run_stage("dagger", config, out, say=QUIET)
    played = list(episodes.read(file))
    assert [e.task.seed for e in played] == [json.loads(line)["task"]["seed"] for line in lines]


def broken_off(finished: Path, run: Path, step: int) -> Path:
    """A copy of a run as if it had been killed after `step` of its steps; returns the file of the games."""
    shutil.copytree(finished, run)
    folder = run / "checkpoints" / "dagger"
    stored = checkpoint.load(sorted(folder.glob("step-*"))[-1])
    shutil.rmtree(folder)
    checkpoint.save(folder, step, stored.tensors, {**stored.state, "step_count": step}, prompt=stored.prompt)
    entries = json.loads((run / "stages.json").read_text())
    entries["dagger"]["state"] = "begun"
    (run / "stages.json").write_text(json.dumps({name: entries[name] for name in ("demos", "sft", "dagger")}))
    return run / "episodes" / "dagger.jsonl"


@pytest.mark.parametrize("change", ["deleted", "repeated", "damaged"])
@pytest.mark.parametrize("step", [4, 6])
def test_games_that_were_learnt_from_must_be_those_that_were_played(
    step: int, change: str, finished: Path, config: Config, tmp_path: Path
) -> None:
    """Killed after the games of the second round were played, before or after its first steps."""
    file = broken_off(finished, tmp_path / "run", step)
    lines = file.read_text().splitlines(keepends=True)
    now = {"deleted": lines[:1] + lines[2:], "repeated": [lines[0], *lines], "damaged": ["?\n", *lines[1:]]}[change]
    file.write_text("".join(now))
    with pytest.raises(DataError, match="is not a JSON" if change == "damaged" else "holds 1 of the") as caught:
        stages.run_stage("dagger", config, tmp_path / "run", say=QUIET)
    assert "--again" in caught.value.hint
    assert file.read_text() == "".join(now)


def test_games_that_were_not_learnt_from_yet_are_played_again_if_they_are_not_the_round_s(
    finished: Path, config: Config, tmp_path: Path
) -> None:
    file = broken_off(finished, tmp_path / "run", 4)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:10] + lines[11:]))
    stages.run_stage("dagger", config, tmp_path / "run", say=QUIET)
    assert [e.task.seed for e in episodes.read(file)] == [json.loads(line)["task"]["seed"] for line in lines]


@pytest.mark.parametrize("left", [0, 5, 11])
def test_games_that_were_learnt_from_and_are_gone_are_missed(
    left: int, finished: Path, config: Config, tmp_path: Path
) -> None:
    """Killed in the second round, whose games are all played: 16 in all, of which `left` are there."""
    run = tmp_path / "run"
    jsonl.keep_first(broken_off(finished, run, 6), left)
    with pytest.raises(DataError, match=f"holds {left} of the 16 games") as caught:
        stages.run_stage("dagger", config, run, say=QUIET)
    assert "--again" in caught.value.hint
    assert len(list(episodes.read(run / "episodes" / "dagger.jsonl"))) == left


def test_reinforcement_begins_with_the_best_of_the_corrected_weights(
    finished: Path, config: Config, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    still = override(config, ["ppo.iterations=1", "ppo.learning_rate=1e-30", "ppo.dev_every=0"], None)
    stages.run_stage("ppo", still, out, say=QUIET, again=True)
    best, ppo = (
        checkpoint.best_valid(out / "checkpoints" / "dagger"),
        checkpoint.latest_valid(out / "checkpoints" / "ppo"),
    )
    assert best is not None
    assert ppo is not None
    one, other = (checkpoint.load(path).tensors["model"] for path in (best, ppo))
    assert all(one[name].equal(other[name]) for name in one if name.startswith("lm."))


def test_corrections_are_learnt_and_not_what_was_done(finished: Path, config: Config) -> None:
    with open_session(Run(finished, config), config, QUIET) as session:
        found = lessons(session, "names", 0.0, "dagger", corrected=True)
        own = lessons(session, "names", 0.0, "dagger")
    assert len(found) >= 16  # a segment each, or more
    pairs = [(a, b) for one, other in zip(found, own, strict=True) for a, b in zip(one.turns, other.turns, strict=True)]
    assert any(a.branches != b.branches for a, b in pairs)
    assert all(a.branches == b.branches for a, b in pairs if a.advice == a.action)


def test_games_that_the_policy_could_not_play_are_not_learnt_from(
    finished: Path, config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    demos = list(episodes.read(out / "episodes" / "demos.jsonl"))
    turn = demos[0].turns[0]
    long = replace(turn, observation=replace(turn.observation, text="a long walk " * 1000))
    alike = replace(
        turn, observation=replace(turn.observation, actions=(*(turn.observation.actions or ()), "go", "go"))
    )

    def learnt_from(*more: Episode) -> int:
        file = out / "episodes" / "demos.jsonl"
        file.unlink()
        episodes.append(file, more)
        with open_session(Run(out, config), config, QUIET) as session:
            return len(lessons(session, "names", 0.0, "demos"))

    def said() -> str:
        return "".join(capsys.readouterr())

    spoilt = [replace(demos[0], turns=(one, *demos[0].turns[1:])) for one in (long, alike)]
    whole = learnt_from(*demos)
    said()
    assert learnt_from(*demos, *(replace(one, outcome=Outcome.FAILED, error="too long") for one in spoilt)) == whole
    assert "left out" not in said()
    assert learnt_from(*demos, *spoilt) == whole
    assert "2 games to learn from are left out, the first because task, observation and action need" in said()
    with pytest.raises(ModelError, match=r"more than the context of 512\n.*raise model.context"):
        learnt_from(spoilt[0])


def test_dagger_needs_rounds_and_a_stage_that_built_on_other_weights_begins_over(
    finished: Path, config: Config, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    without = override(config, ["dagger.rounds=0"], None)
    with pytest.raises(ConfigError, match=r"dagger\.rounds \(2 there, 0 now\)") as refused:
        stages.run_stage("ppo", without, out, say=QUIET, again=True)
    assert f"grue sft {out} --again" in refused.value.hint  # a stage that is left out cannot be repeated
    stages.run_stage("sft", without, out, say=QUIET, again=True)
    assert not (out / "episodes" / "dagger.jsonl").exists()
    assert read_metrics(out, "dagger") == read_metrics(out, "dagger_dev") == []
    with pytest.raises(ConfigError, match=r"dagger\.rounds is 0"):
        stages.run_stage("dagger", without, out, say=QUIET)
    assert "dagger" not in read_stages(out)  # so that the hint can be followed
    results = stages.run_all(without, out, say=QUIET)
    assert "dagger" not in results["policies"]
    # PPO has begun with the weights of SFT
    with pytest.raises(ConfigError, match=r"dagger\.rounds \(0 there, 2 now\)"):
        stages.run_stage("dagger", config, out, say=QUIET)
    stages.run_stage("dagger", config, out, say=QUIET, again=True)
    assert read_metrics(out, "ppo") == []
    shown = [row["policy"] for _, row in jsonl.read(out / "episodes" / "shown.jsonl")]
    assert shown == ["base", "sft", "dagger"]


def test_ppo_does_not_begin_with_corrections_that_are_not_done(finished: Path, config: Config, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    stages.run_stage("sft", config, out, say=QUIET, again=True)
    with pytest.raises(DataError, match=r"DAgger is not done.*\n.*grue sft .* dagger\.rounds=0 --again"):
        stages.run_stage("ppo", config, out, say=QUIET)


@pytest.mark.parametrize(
    ("stage", "lost", "said"),
    [
        ("ppo", "checkpoints/dagger/*/model.safetensors", "no best weights"),
        ("dagger", "episodes/demos.jsonl", "no demonstrations"),
    ],
)
def test_nothing_is_deleted_for_a_stage_that_cannot_begin(
    stage: str, lost: str, said: str, finished: Path, config: Config, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    for file in out.glob(lost):
        file.unlink()
    there = sorted(out.rglob("*"))
    with pytest.raises((CheckpointError, DataError), match=said):
        stages.run_stage(stage, config, out, say=QUIET, again=True)
    assert sorted(out.rglob("*")) == there


def test_thoughts_cannot_be_corrected(config: Config) -> None:
    with pytest.raises(ConfigError, match="no thoughts"):
        override(config, ["policy.kind=think"], None)


def test_steps_that_float16_leaves_out_spoil_no_mean(tiny_folder: Path, tmp_path: Path) -> None:
    """A loss scale that overflows: gradients are infinite, the step is left out, and the state is still saved."""
    config = tiny.config(tiny_folder, *SETTINGS, "model.dtype=float16", "dagger.save_every_s=0")
    for stage in ("demos", "sft"):
        stages.run_stage(stage, config, tmp_path / "run", say=QUIET)  # type: ignore[arg-type]
    with open_session(Run(tmp_path / "run", config), config, QUIET) as session:
        session.load("sft")
        learner = Learner.of(session.model, config.model, config.dagger)
        assert learner.loss_scale is not None
        learner.loss_scale.scale = 1e38
        found = lessons(session, "names", 0.0, "demos")
        progress = {"sums": {}, "env_steps": 0}
        points = SavePoints(1e9, learner.processes, session.interrupt)
        with QUIET.bar("DAgger", 1) as bar:
            means = _learn(session.context(config.dagger, learner), Lessons(found, found), progress, points, bar, "")
    assert means["skipped"] > 0
    assert all(math.isfinite(value) for value in means.values())


def test_a_step_reads_its_share_of_demonstrations(config: Config) -> None:
    turn = Turn(tiny.scripted("gold")[0].turns[0].observation, "look", 0.0)

    def some(count: int, first: int) -> list[Sample]:
        return [Sample((first + i,), (turn,)) for i in range(count)]

    items = Lessons(some(40, 0), some(6, 1000))
    few, none = Lessons(items.demos, items.corrected[:3]), Lessons(items.demos, [])
    for had, share, expected in (
        (items, 0.0, (0, 6)),
        (items, 0.25, (2, 6)),
        (items, 0.75, (6, 2)),
        (few, 0.5, (3, 3)),  # a smaller batch, and the share is what was asked for
        (none, 0.5, (4, 0)),
    ):
        cfg = config.dagger.model_copy(update={"demo_share": share})
        drawn = [sample.ids[0] for sample in _drawn(had, cfg, random.Random(0))]
        assert (sum(i < 1000 for i in drawn), sum(i >= 1000 for i in drawn)) == expected
        assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize(("batch", "share"), [(4, 0.9), (1, 0.5), (32, 0.99)])
def test_a_share_that_does_not_come_out_even_is_kept_on_average(batch: int, share: float, config: Config) -> None:
    turn = Turn(tiny.scripted("gold")[0].turns[0].observation, "look", 0.0)
    items = Lessons(*([Sample((first + i,), (turn,)) for i in range(40)] for first in (0, 1000)))
    cfg = config.dagger.model_copy(update={"demo_share": share, "episodes_per_batch": batch})
    drawn = [[sample.ids[0] for sample in _drawn(items, cfg, random.Random(step))] for step in range(600)]
    assert {len(step) for step in drawn} == {batch}
    shown = sum(i < 1000 for step in drawn for i in step) / 600
    assert shown == pytest.approx(share * batch, abs=0.08)


def test_a_teacher_who_never_knows_what_to_do_is_an_error(config: Config) -> None:
    with pytest.raises(TrainingError, match="optimal had no advice"):
        _corrections(tiny.scripted("random", 3), config)


def test_a_teacher_who_cannot_play_the_game_is_refused_before_anything_is_done(config: Config, tmp_path: Path) -> None:
    with pytest.raises(GameError, match="explore"):
        stages.run_all(override(config, ["dagger.teacher=explore"], None), tmp_path / "run", say=QUIET)
    assert read_stages(tmp_path / "run") == {}
