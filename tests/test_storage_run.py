"""The run directory: begun, taken up again, read."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from grue import load_policy
from grue.config import load_config
from grue.errors import ConfigError, DataError, GrueError
from grue.storage import forms, jsonl
from grue.storage.contents import read_evaluation, read_metrics, read_results, read_run_config, read_stages
from grue.storage.run import Run
from grue.storage.settled import default_out


def test_a_run_directory_holds_its_whole_configuration(tmp_path: Path) -> None:
    config = load_config("toy", ["ppo.gamma=0.9"], seed=3)
    run = Run(tmp_path / "a" / "b", config)
    assert not run.resumed
    assert read_run_config(run.out) == config
    assert Run(run.out, config).resumed
    assert default_out(config) == Path("runs/toy-seed3")
    for settings, name in (
        ([], "cooking16-seed0"),
        (["game.name=coin"], "coin-seed0"),
        (["game.name=babyai"], "other-babyai-seed0"),
        (["game.name=jericho:stories/zork1.z5"], "other-jericho-zork1-seed0"),
    ):
        assert default_out(load_config(overrides=settings)) == Path("runs", name)
    assert default_out(load_config("smoke", ["game.name=twc"], seed=1)) == Path("runs/smoke-twc-seed1")


def test_settings_are_fixed_once_their_stage_has_begun(tmp_path: Path) -> None:
    Run(tmp_path, load_config("toy"))
    run = Run(tmp_path, load_config("toy", ["model.lora_rank=4", "sft.epochs=2"]))  # nothing has begun
    assert {*run.adopted.split("), ")} == {"sft.epochs (1 there, 2 now)", "model.lora_rank (16 there, 4 now"}
    run.begin("sft")
    changed = ["model.lora_rank=4", "sft.epochs=2", "ppo.gamma=0.5", "threads=3"]
    found = Run(tmp_path, load_config("toy", changed))
    assert (found.config.ppo.gamma, found.adopted) == (0.5, "ppo.gamma (0.97 there, 0.5 now)")
    assert Run(tmp_path, load_config("toy", changed)).adopted == ""
    with pytest.raises(ConfigError, match=r"sft\.epochs \(2 there, 3 now\)") as caught:
        Run(tmp_path, load_config("toy", [*changed, "sft.epochs=3"]))
    assert "model.lora_rank" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"model\.lora_rank \(4 there, 16 now\)"):
        Run(tmp_path, load_config("toy", ["sft.epochs=2"]))
    assert read_run_config(tmp_path).ppo.gamma == 0.5


def test_a_model_that_was_moved_may_have_a_new_place(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    config = load_config("toy", [f"model.name={old}"])
    Run(tmp_path / "run", config).begin("demos")
    new.mkdir()
    elsewhere = load_config("toy", [f"model.name={new}"])
    with pytest.raises(ConfigError, match=r"model\.name"):  # both are there: which one?
        Run(tmp_path / "run", elsewhere)
    old.rmdir()
    Run(
        tmp_path / "run", tiny.edit_config(tmp_path / "run", f"model.name={new}")
    )  # as the error of a missing folder advises
    Run(tmp_path / "run", elsewhere)
    assert read_run_config(tmp_path / "run").model.name == str(new)
    with pytest.raises(ConfigError, match=r"model\.name"):
        Run(tmp_path / "run", load_config("toy"))


def test_a_stage_that_broke_off_keeps_its_settings_from_an_editor(tmp_path: Path) -> None:
    Run(tmp_path, load_config("toy")).begin("sft")
    edited = tiny.edit_config(tmp_path, "sft.epochs=3", "policy.min_p=0.5")
    with pytest.raises(ConfigError, match=r"policy\.min_p \(0\.01 there, 0\.5 now\), sft\.epochs \(1 there, 3 now\)"):
        Run(tmp_path, edited)
    assert read_run_config(tmp_path) == edited  # it is left to its editor
    Run(tmp_path, load_config("toy"))  # a command may give the old ones instead
    assert read_run_config(tmp_path) == load_config("toy")
    Run(tmp_path, tiny.edit_config(tmp_path, "sft.epochs=3", "policy.min_p=0.5"), again="demos").begin("demos")
    Run(tmp_path, read_run_config(tmp_path))
    file = tmp_path / "config.yaml"
    file.write_text(file.read_text().replace("preset: toy", "preset: smoke"))
    with pytest.raises(ConfigError, match=r"preset \(toy there, smoke now\)"):
        Run(tmp_path, read_run_config(tmp_path))


def test_settings_that_were_not_written_down_are_not_missed(tmp_path: Path) -> None:
    """As in a run of an earlier version, which wrote no settings.json, or did not have all of today's settings."""
    Run(tmp_path, load_config("toy")).begin("sft")
    file = tmp_path / "settings.json"
    known = json.loads(file.read_text())
    assert known.pop("policy.min_p") == 0.01
    file.write_text(json.dumps({**known, "policy.of_the_past": 1}))
    Run(tmp_path, tiny.edit_config(tmp_path, "policy.min_p=0.5"))
    with pytest.raises(ConfigError, match=r"policy\.min_p \(0\.5 there, 0\.1 now\)"):  # from a command it is
        Run(tmp_path, load_config("toy", ["policy.min_p=0.1"]))
    file.unlink()
    Run(tmp_path, tiny.edit_config(tmp_path, "seed=3")).begin("ppo")
    with pytest.raises(ConfigError, match=r"seed \(3 there, 4 now\)"):
        Run(tmp_path, tiny.edit_config(tmp_path, "seed=4"))


def test_integers_of_any_size_are_compared(tmp_path: Path) -> None:
    config = load_config("toy", [f"sft.warmup_steps={10**30}"])
    Run(tmp_path, config).begin("sft")
    Run(tmp_path, config)
    with pytest.raises(ConfigError, match=r"sft\.warmup_steps"):
        Run(tmp_path, tiny.edit_config(tmp_path, f"sft.warmup_steps={10**31}"))


def test_the_commit_of_a_model_may_be_named_later(tmp_path: Path) -> None:
    """As the error about another prompt format advises."""
    Run(tmp_path, load_config("toy", ["model.name=some/model"])).begin("demos")
    pinned = load_config("toy", ["model.name=some/model", "model.revision=abc"])
    Run(tmp_path, pinned).begin("sft")
    assert read_run_config(tmp_path).model.revision == "abc"
    with pytest.raises(ConfigError, match=r"model\.revision \(abc there, def now\)"):
        Run(tmp_path, tiny.edit_config(tmp_path, "model.revision=def"))


def test_another_preset_is_named_and_not_all_that_it_changes(tmp_path: Path) -> None:
    Run(tmp_path, load_config("toy")).begin("eval")
    with pytest.raises(ConfigError, match=r"was begun with preset toy, not cooking16: .* and \d+ more") as caught:
        Run(tmp_path, load_config("cooking16"))
    assert caught.value.message.count(" there, ") == 8


def test_stages_are_remembered(tmp_path: Path) -> None:
    config = load_config("toy")
    run = Run(tmp_path, config)
    run.begin("demos")
    assert not run.is_done("demos")
    run.done("demos", games=64)
    again = Run(tmp_path, config)
    assert again.is_done("demos")
    assert again.facts("demos")["games"] == 64
    assert again.facts("sft") == {}
    assert read_stages(tmp_path)["demos"]["state"] == "done"
    with pytest.raises(ConfigError, match="no stage 'nosuch'"):
        run.begin("nosuch")
    again.begin("demos")  # its file was deleted, say
    assert not Run(tmp_path, config).is_done("demos")


def test_a_stage_done_again_starts_over_with_those_behind_it(tmp_path: Path) -> None:
    config = load_config("toy")
    run = Run(tmp_path, config)
    for stage in ("demos", "sft", "ppo"):
        run.begin(stage)
        run.log(stage, 1, {"loss": 1.0})
        run.checkpoints(stage).mkdir(parents=True)
        run.episodes(stage).parent.mkdir(exist_ok=True)
        run.episodes(stage).touch()
        run.done(stage)
    run.write_results({})
    with pytest.raises(ConfigError, match=r"demos\.games"):
        Run(tmp_path, load_config("toy", ["sft.epochs=5", "demos.games=9"]), again="sft")
    assert len(read_metrics(tmp_path)) == 3  # a refused command deletes nothing
    probe = tmp_path / "episodes/probe-sft.jsonl"
    probe.write_text("{}\n")
    again = Run(tmp_path, load_config("toy", ["sft.epochs=5"]), again="sft")
    assert again.lost == ("sft", "ppo")
    assert probe.exists()  # it may yet be found that the stage cannot run
    assert Run(tmp_path, load_config("toy")).is_done("ppo")
    again.begin("sft")
    assert not probe.exists()
    assert [again.is_done(stage) for stage in ("demos", "sft", "ppo")] == [True, False, False]
    assert [row["stage"] for row in read_metrics(tmp_path)] == ["demos"]
    assert [again.checkpoints(stage).exists() for stage in ("demos", "sft", "ppo")] == [True, False, False]
    assert [again.episodes(stage).exists() for stage in ("demos", "sft", "ppo")] == [True, False, False]
    assert read_results(tmp_path) is None


def test_metrics_beyond_the_restored_step_are_forgotten(tmp_path: Path) -> None:
    run = Run(tmp_path, load_config("toy"))
    run.log("sft", 9, {"loss": 0.5})
    for step in range(5):
        run.log("ppo", step, {"score": step / 4, "ratio": float("nan")})
    with run.metrics_file.open("ab") as file:
        file.write(b'{"stage": "ppo", "st')  # as a kill leaves it
    resumed = Run(tmp_path, load_config("toy"))
    resumed.rewind("ppo", 2)
    resumed.log("ppo", 3, {"score": 1.0})
    rows = read_metrics(tmp_path)
    assert [(row["stage"], row["step"]) for row in rows] == [("sft", 9), *(("ppo", step) for step in range(4))]
    assert rows[-1]["score"] == 1.0
    assert rows[1]["ratio"] is None
    assert [row["step"] for row in read_metrics(tmp_path, "sft")] == [9]


def test_the_time_of_a_stage_runs_on_over_commands(tmp_path: Path) -> None:
    run = Run(tmp_path, load_config("toy"))
    run.begin("ppo")
    run.log("ppo", 1, {})
    times = [read_metrics(tmp_path)[0]["time_s"]]
    resumed = Run(tmp_path, load_config("toy"))
    resumed.begin("ppo")
    resumed.log("ppo", 2, {})
    times += [read_metrics(tmp_path)[1]["time_s"]]
    assert 0 <= times[0] <= times[1] < 60


def test_the_time_of_a_command_that_was_killed_counts(tmp_path: Path) -> None:
    run = Run(tmp_path, load_config("toy"))
    run.begin("sft")
    time.sleep(0.3)
    run.log("sft", 1, {"loss": 1.0})
    again = Run(tmp_path, load_config("toy"))  # without a word of the first one's end
    again.begin("sft")
    assert again.seconds("sft") >= 0.3
    again.add_seconds("sft", 10.0)
    third = Run(tmp_path, load_config("toy"))
    third.begin("sft")
    assert 10.3 <= third.seconds("sft") < 11


def test_results_are_written_whole(tmp_path: Path) -> None:
    run = Run(tmp_path, load_config("toy"))
    assert read_results(tmp_path) is None
    run.write_results({"schema": 1, "policies": {"gold": {"success": 1.0}}})
    run.write_results({"schema": 1, "policies": {}})
    assert read_results(tmp_path) == {"schema": 1, "policies": {}}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "config.yaml", "results.json"]
    run.results_file.write_text("{")
    with pytest.raises(DataError, match=r"results\.json is not JSON") as damaged:
        read_results(tmp_path)
    assert damaged.value.hint.startswith("delete it")  # nothing is lost with it


def test_a_damaged_list_of_stages_is_refused(tmp_path: Path) -> None:
    config = load_config("toy")
    Run(tmp_path, config).begin("demos")
    (tmp_path / "stages.json").write_text('{"demos": 3}')
    for read in (lambda: read_stages(tmp_path), lambda: Run(tmp_path, config)):
        with pytest.raises(DataError, match=r"stages\.json holds 3 for demos"):
            read()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('{"state": "done", "seconds": "x"}', "seconds is 'x', not a number"),
        ('{"state": "begun", "seconds": null}', "seconds is None, not a number"),
        ('{"state": "done"}', "lacks 'seconds'"),
        ('{"seconds": 1.0}', "lacks 'state'"),
        ('{"state": [], "seconds": 1.0}', r"state is \[\]"),
        ('{"state": "done", "seconds": 1.0, "episodes": "6"}', "episodes is '6', not a whole number"),
        ('{"state": "done", "seconds": 1.0, "env_steps": null}', "env_steps is None, not a whole number"),
    ],
)
def test_a_damaged_stage_is_named(entry: str, words: str, tmp_path: Path) -> None:
    config = load_config("toy")
    Run(tmp_path, config).begin("demos")
    (tmp_path / "stages.json").write_text(f'{{"demos": {entry}}}')
    for read in (lambda: read_stages(tmp_path), lambda: Run(tmp_path, config)):
        with pytest.raises(DataError, match=rf"stages\.json: demos:? {words}"):
            read()


def test_what_a_chat_model_was_paid_for_is_kept_unless_other_games_are_played(tmp_path: Path) -> None:
    config = load_config("toy")
    run = Run(tmp_path, config)
    run.begin("eval")
    jsonl.append(run.evaluation_file, [{"row": "eval-sft-test-greedy", "result": RESULT}])
    jsonl.append(run.evaluation_file, [{"row": "api-m-test-greedy", "result": RESULT, "api": API}])
    for stage in ("eval", "sft"):
        Run(tmp_path, config, again=stage).begin(stage)  # type: ignore[arg-type]
        assert [row["row"] for row in read_evaluation(tmp_path)] == ["api-m-test-greedy"]
    Run(tmp_path, config, again="demos").begin("demos")
    assert read_evaluation(tmp_path) == []


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"stage": "ppo", "step": 2, "time_s": "x"}', "time_s is 'x', not a number"),
        ('{"stage": "ppo", "step": "2", "time_s": 1.0}', "step is '2', not a whole number"),
        ('{"stage": "ppo", "step": 2.5, "time_s": 1.0}', "step is 2.5, not a whole number"),
        ('{"stage": "ppo", "time_s": 1.0}', "lacks 'step'"),
        ('{"stage": "ppo", "step": 2}', "lacks 'time_s'"),
        ('{"step": 2, "time_s": 1.0}', "lacks 'stage'"),
        ('{"stage": "ppo", "step": 2, "time_s": 1.0, "env_steps_trained": "x"}', "env_steps_trained is 'x'"),
        ('["ppo", 2, 1.0]', "is not a JSON object"),
    ],
)
def test_a_damaged_row_of_metrics_is_named(row: str, words: str, tmp_path: Path) -> None:
    run = Run(tmp_path, load_config("toy"))
    run.log("ppo", 1, {})
    with run.metrics_file.open("a") as file:
        file.write(row + "\n")
    before = run.metrics_file.read_bytes()
    for read in (lambda: read_metrics(tmp_path, "ppo"), lambda: run.rewind("ppo", 1), lambda: run.begin("ppo")):
        with pytest.raises(DataError, match=rf"metrics\.jsonl:2:? {words}"):
            read()
    assert run.metrics_file.read_bytes() == before


RESULT = {"fold": "test", "games": 2, "failed": 0, "seeds": [1, 2], "success": 0.5, "success_ci95": [0, 1], "score": 1}
API = {"policy": "api:m", "fold": "test", "decoding": "greedy"}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"result": RESULT}, "lacks 'row'"),
        ({"row": ["a"], "result": RESULT}, r"row is \['a'\], not a string"),
        ({"row": "a"}, "lacks 'result'"),
        ({"row": "a", "result": [RESULT]}, r"result is \[.*, not an object"),
        ({"row": "a", "result": {**RESULT, "seeds": 1}}, "seeds is 1, not two numbers"),
        ({"row": "a", "result": {**RESULT, "success": "x"}}, "success is 'x', not a number"),
        ({"row": "a", "result": {**RESULT, "success_ci95": None}}, "success_ci95 is None, not two numbers"),
        ({"row": "a", "result": RESULT, "api": []}, r"api is \[\], not an object"),
        ({"row": "a", "result": RESULT, "api": {**API, "fold": "x"}}, "fold is 'x'"),
        ({"row": "a", "result": RESULT, "api": {"policy": "api:m", "decoding": "greedy"}}, "lacks 'fold'"),
    ],
)
def test_a_damaged_row_of_the_evaluation_is_named(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    run = Run(tmp_path, load_config("toy"))
    good = {"row": "eval-ppo-test-greedy", "result": RESULT, "api": API}
    jsonl.append(run.evaluation_file, [good])
    assert read_evaluation(tmp_path) == [good]
    jsonl.append(run.evaluation_file, [row])
    for read in (lambda: read_evaluation(tmp_path), lambda: run.begin("ppo")):
        with pytest.raises(DataError, match=rf"evaluation\.jsonl:2:? {words}"):
            read()


def test_a_result_without_a_finished_game_is_whole(tmp_path: Path) -> None:
    none = {**RESULT, "games": 0, "failed": 2, "success": None, "success_ci95": None, "score": None}
    jsonl.append(tmp_path / "evaluation.jsonl", [{"row": "a", "result": none}])
    assert read_evaluation(tmp_path)[0]["result"] == none


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluation.jsonl"])
def test_a_torn_last_line_is_no_damage(name: str, tmp_path: Path) -> None:
    run = Run(tmp_path, load_config("toy"))
    run.log("ppo", 1, {})
    jsonl.append(run.evaluation_file, [{"row": "a", "result": RESULT}])
    with (tmp_path / name).open("a") as file:
        file.write('{"stage": "ppo", "step": 2, "ti')
    assert len(read_metrics(tmp_path)) == len(read_evaluation(tmp_path)) == 1


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        ([], r"policies is \[\], not an object"),
        ({"ppo": 0.5}, "ppo is 0.5, not an object"),
        ({"ppo": {}}, "lacks 'decoding'"),
        ({"ppo": {"decoding": {"greedy": {**RESULT, "games": "2"}}}}, "games is '2', not a whole number"),
    ],
)
def test_damaged_results_are_named(policies: Any, words: str, tmp_path: Path) -> None:
    Run(tmp_path, load_config("toy")).write_results({"schema": 1, "policies": policies})
    with pytest.raises(DataError, match=rf"results\.json:? {words}"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"asked": []}, r"asked is \[\], not an object"),
        ({"asked": {"temperature": "x", "max_tokens": 9}}, "temperature is 'x', not a number"),
        ({"requests": "x"}, "requests is 'x', not a whole number"),
        ({"requests": 1, "prompt_tokens": None, "completion_tokens": 3}, "lacks 'cost'"),
    ],
)
def test_a_damaged_row_of_what_was_spent_is_named(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    jsonl.append(tmp_path / "a.jsonl", [{"asked": {"temperature": 0.0, "max_tokens": 256}}, row])
    with pytest.raises(DataError, match=rf"a\.jsonl:2:? {words}"):
        list(jsonl.read(tmp_path / "a.jsonl", forms.spent_row))


def test_folders_that_are_no_run_directories_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="holds other files"):
        Run(tmp_path, load_config("toy"))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ConfigError, match=r"cannot open the run directory"):
        Run(tmp_path / "thesis.tex", load_config("toy"))
    with pytest.raises(ConfigError, match="not a run directory"):
        read_run_config(tmp_path)


def test_who_names_another_folder_is_told_the_run_that_was_meant(tmp_path: Path) -> None:
    run, other = tmp_path / "runs" / "new", tmp_path / "runs" / "old"
    for folder, written in ((other, 1), (run, 2)):
        Run(folder, load_config("toy")).begin("demos")
        (folder / "checkpoints" / "ppo").mkdir(parents=True)
        for path in folder.iterdir():
            os.utime(path, (written, written))
    for named, said in (
        (run / "checkpoints" / "ppo", f"name the run directory itself: {run}"),
        (run / "checkpoints" / "nope", f"name the run directory itself: {run}"),
        (tmp_path / "runs", f"last written to: {run}, {other}"),
        (tmp_path / "runs" / "nope", f"last written to: {run}, {other}"),
        (tmp_path / "nope", "grue run --out DIR makes a run; "),
    ):
        with pytest.raises(ConfigError) as caught:
            load_policy(named)
        assert caught.value.hint.startswith(said)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_place_where_no_run_can_be_made_is_answered_with_another() -> None:
    with pytest.raises(ConfigError, match="open the run directory /proc/x") as caught:
        Run(Path("/proc/x"), load_config("toy"))
    assert caught.value.hint == "choose a place that can be written to, with --out"


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "", ".hidden", "a/b", "a\n"])
def test_names_do_not_lead_out_of_the_run(name: str, tmp_path: Path) -> None:
    run = Run(tmp_path, load_config("toy"))
    with pytest.raises(ValueError, match="a file name"):
        run.episodes(name)
    with pytest.raises(ValueError, match="a file name"):
        run.checkpoints(name)


@pytest.mark.skipif(sys.platform == "win32", reason="locks are POSIX ones")
def test_a_drive_without_locks_is_not_taken_for_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import fcntl
    import os

    def refuse(*_: object) -> None:  # as a network drive does whose server knows no locks
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with pytest.raises(ConfigError, match=r"cannot open the run directory .*: No locks available") as caught:
        Run(tmp_path / "run", load_config("toy"))
    assert "does not lock files" in caught.value.hint


@pytest.mark.skipif(sys.platform == "win32", reason="locks are POSIX ones")
def test_a_shared_folder_is_locked_by_whoever_may_write_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o002)  # of a group that works together
    try:
        Run(tmp_path / "run", load_config("toy"))
    finally:
        os.umask(before)
    lock = tmp_path / "run" / ".lock"
    assert lock.stat().st_mode & 0o777 == 0o664

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("grue.storage.files._locks", {})
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match=rf"cannot lock {lock}: Permission denied") as caught:
        Run(tmp_path / "run", load_config("toy"))
    assert f"chmod g+w {lock}" in caught.value.hint


@pytest.mark.skipif(sys.platform == "win32", reason="locks are POSIX ones")
def test_two_processes_do_not_share_a_run_directory(tmp_path: Path) -> None:
    Run(tmp_path, load_config("toy"))
    Run(tmp_path, load_config("toy"))  # the same process may
    script = (
        "import sys; from pathlib import Path; from grue.config import load_config; from grue.storage.run import Run\n"
    )
    script += "Run(Path(sys.argv[1]), load_config('toy'))"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert "another process is working on" in done.stderr


def test_a_folder_without_a_name_in_utf8_is_refused_before_hours_of_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not valid UTF-8"):
        Run(tmp_path / "byt\udce9", load_config("toy"))


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_drive_that_syncs_no_folders_takes_a_run(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared folders of virtual machines and some network drives."""
    sync = os.fsync

    def refusing(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refusing)
    Run(tmp_path / "run", load_config("toy"))
    assert (tmp_path / "run" / "config.yaml").exists()


def test_a_deletion_that_was_broken_off_is_finished(tmp_path: Path) -> None:
    program = f"""
import os, pathlib, shutil
from grue.config import load_config
from grue.storage.run import Run
out = pathlib.Path({str(tmp_path)!r})
run = Run(out, load_config("toy"))
for stage in ("demos", "sft", "ppo", "eval"):
    run.begin(stage)
    run.log(stage, 1, {{}})
    run.checkpoints(stage).mkdir(parents=True)
    run.done(stage)
shutil.rmtree = lambda *given, **more: os._exit(9)
Run(out, load_config("toy", ["sft.epochs=2"]), again="sft").begin("sft")
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    assert [(name, entry["state"]) for name, entry in read_stages(tmp_path).items()] == [
        ("demos", "done"),
        *((name, "deleting") for name in ("sft", "ppo", "eval")),
    ]
    run = Run(tmp_path, load_config("toy", ["sft.epochs=3"]))  # what is being deleted has no settings to keep
    assert run.is_done("demos") and not any(map(run.is_done, ("sft", "ppo", "eval")))
    assert run.lost == ("sft", "ppo", "eval")
    run.begin("sft")
    assert not run.checkpoints("ppo").exists() and read_run_config(tmp_path).sft.epochs == 3
    assert {*read_stages(tmp_path)} == {"demos", "sft"}


def test_results_of_older_weights_are_forgotten_when_training_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path, load_config("toy"))
    run.begin("ppo")
    run.write_results({"policies": {}, "schema": 1})
    (tmp_path / "report.html").write_text("PPO wins")
    assert run.results_file.exists()
    run.begin("ppo")
    assert read_results(tmp_path) is None and not (tmp_path / "report.html").exists()


def test_a_run_that_has_lost_its_stages_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    run = Run(tmp_path, load_config("toy"))
    run.begin("sft")
    (run.checkpoints("sft") / "step-00000001").mkdir(parents=True)
    (tmp_path / "stages.json").unlink()
    with pytest.raises(DataError, match=r"stages\.json is missing"):
        Run(tmp_path, load_config("toy", seed=7))


def test_a_chat_models_games_are_of_one_game_and_seed(tmp_path: Path) -> None:
    Run(tmp_path, load_config("toy"))
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "api-m-test-greedy.jsonl").touch()
    for settings, seed, again in ((["game.limit=5"], None, ""), ([], 3, "demos")):
        with pytest.raises(ConfigError, match="holds games of a chat model, which were played with another"):
            Run(tmp_path, load_config("toy", settings, seed=seed), again=again)
    Run(tmp_path, load_config("toy", ["sft.epochs=2"]))


def test_dev_rows_have_the_time_of_their_stage_after_a_break(tmp_path: Path) -> None:
    rows = [{"stage": "dev", "step": 5, "time_s": 52.0}, {"stage": "ppo", "step": 9, "time_s": 90.0}]
    jsonl.append(tmp_path / "metrics.jsonl", rows)
    run = Run(tmp_path / "run", load_config("toy"))
    (tmp_path / "metrics.jsonl").replace(run.metrics_file)
    run.rewind("ppo", 9)
    run.rewind("dev", 9)
    run.log("ppo", 10, {})
    run.log("dev", 10, {})
    assert [round(row["time_s"]) for row in read_metrics(run.out)[2:]] == [90, 90]


def test_settings_of_a_refused_command_are_given_back(tmp_path: Path) -> None:
    Run(tmp_path, load_config("toy")).begin("demos")
    run = Run(tmp_path, load_config("toy", ["dagger.rounds=3"]))
    assert read_run_config(tmp_path).dagger.rounds == 3
    with pytest.raises(DataError), run.changed_unless_refused():
        raise DataError("the teacher cannot")
    assert read_run_config(tmp_path).dagger.rounds == 0
    run = Run(tmp_path, load_config("toy", ["dagger.rounds=3"]))
    run.begin("sft")
    with pytest.raises(DataError), run.changed_unless_refused():
        raise DataError("a later stage cannot begin")
    assert read_run_config(tmp_path).dagger.rounds == 3  # the stage that has begun did so with it


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks")
@pytest.mark.parametrize("lost", ["moved", "deleted", "lock deleted", "another"])
def test_nothing_is_written_where_the_folder_was_moved_or_deleted(tmp_path: Path, lost: str) -> None:
    """It would begin a second run there, with half of what belongs together."""
    run = Run(tmp_path / "run", load_config("toy"))
    run.begin("demos")
    if lost == "lock deleted":
        (run.out / ".lock").unlink()
    else:
        run.out.rename(tmp_path / "elsewhere")
    if lost == "deleted":
        shutil.rmtree(tmp_path / "elsewhere")
    if lost == "another":
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / ".lock").touch()
    for write in (
        lambda: run.log("sft", 1, {"loss": 1.0}),
        lambda: run.done("demos"),
        lambda: run.save("sft", 1, {"model": {"w": torch.ones(1)}}, {}),
        lambda: jsonl.append(run.episodes("demos"), [{"a": 1}]),
    ):
        with pytest.raises(GrueError, match=r"\.lock is no longer the file that this command has locked") as caught:
            write()
        assert caught.value.hint == "has the folder been moved or deleted?"
    assert (tmp_path / "run").exists() == (lost in ("lock deleted", "another"))
    Run(tmp_path / "run", load_config("toy")).begin("demos")  # a command that begins there now may write


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks")
def test_a_run_may_begin_where_another_was_moved_away(tmp_path: Path) -> None:
    """And frees none of the locks that this process still has: closing a file does, for all of its descriptors."""
    config = load_config("toy")
    first = Run(tmp_path / "x", config)
    first.begin("demos")
    first.out.rename(tmp_path / "y")
    Run(tmp_path / "y", config).begin("demos")
    Run(tmp_path / "x" / "below", config).begin("demos")
    code = f"import pathlib, grue.storage.files as f; f.lock_folder(pathlib.Path({str(tmp_path / 'y')!r}))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "another process is working on" in ended.stderr


def test_a_metric_does_not_replace_what_a_row_says_of_itself(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", load_config("toy"))
    with pytest.raises(ConfigError, match="step, time_s of a row are set here"):
        run.log("ppo", 1, {"step": 7, "time_s": 0.0, "success": 1.0})
    assert not run.metrics_file.exists()
