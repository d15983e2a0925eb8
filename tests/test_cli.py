"""The command line: fast, clear about mistakes, and with the exit codes it promises."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from grue import __version__
from grue.cli import common, epilogs
from grue.cli.doctor import check_model, what_to_estimate
from grue.cli.perform import perform
from grue.config import PRESETS, load_config
from grue.errors import ConfigError, GrueError, TrainingError
from grue.experiments.eval_gap import settings as eval_gap
from grue.experiments.eval_gap.suspects import EVALUATION, TRAINING
from grue.experiments.second_visit import settings as second_visit
from grue.games.teachers import TEACHERS
from grue.interrupt import Interrupted
from grue.progress import Progress

VERBS = [
    "run",
    "demos",
    "sft",
    "dagger",
    "ppo",
    "eval",
    "compare",
    "track",
    "report",
    "watch",
    "play",
    "doctor",
    "check-game",
    "pretrain",
    "experiment",
    "bench",
    "export",
    "push",
]


def grue(
    *arguments: str, cwd: Path | None = None, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "grue", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        input=stdin,
        env={**os.environ, **environment},
    )


def test_help_loads_nothing_heavy_and_names_every_verb() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "grue", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "click" in loaded or "typer" in loaded
    assert not loaded & {"torch", "transformers", "numpy", "pydantic", "yaml", "py4j", "orjson"}
    for verb in VERBS:
        assert f"\n  {verb} " in done.stdout


def test_a_run_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    for name, written in (("older", 1), ("newer", 2)):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("preset: toy\n")
        os.utime(folder / "config.yaml", (written, written))
    done = grue("eval", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no run directory runs/cooking16-seed0" in done.stderr
    newer, older = (str(Path("runs", name)) for name in ("newer", "older"))
    assert f"hint: last written to: {newer}, {older}" in done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str) -> None:
    done = grue(verb, "-h")
    assert done.returncode == 0
    assert "Usage:" in done.stdout


def _listed(text: str, pattern: str = r"[\w-]+") -> set[str]:
    """The words of the indented lines."""
    return {word for line in text.splitlines() if line.startswith("  ") for word in re.findall(pattern, line)}


def test_help_lists_the_presets_teachers_and_contrasts_that_exist() -> None:
    assert set(PRESETS) <= _listed(epilogs.PRESETS)
    assert _listed(epilogs.PRESETS, r"tales-[\w-]+") <= set(PRESETS)
    assert _listed(epilogs.TEACHERS, r"^  ([\w-]+)") == set(TEACHERS)
    assert _listed(epilogs.CONTRASTS) == {*EVALUATION, *TRAINING}
    of_gap, of_visits = epilogs.SIZES.split("\n\n")[:2]
    for text, sizes in ((of_gap, eval_gap.Settings()), (of_visits, second_visit.Settings())):
        listed = [
            size for line in text.splitlines() if line.startswith("  ") for size in re.findall(r"\S+=[^\s,]+", line)
        ]
        assert listed == [f"{key}={value}" for key, value in sizes]


@pytest.mark.parametrize(
    ("verb", "text"),
    [
        ("run", epilogs.PRESETS),
        ("demos", epilogs.TEACHERS),
        ("experiment", epilogs.CONTRASTS),
        ("experiment", epilogs.SIZES),
    ],
)
def test_lists_of_the_help_keep_their_lines_in_a_terminal_of_80_columns(verb: str, text: str) -> None:
    shown = grue(verb, "--help", COLUMNS="80").stdout.splitlines()
    assert {f"  {line}" for line in text.splitlines() if line.startswith("  ")} <= set(shown)


def test_version() -> None:
    assert grue("--version").stdout == f"grue {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Usage"),
        (("nosuch",), "No such command"),
        (("run", "--nosuch"), "No such option"),
        (("run", "--ppo.iterations=3"), "settings have no dashes\nhint: ppo.iterations=3, after the verb"),
        (("run", "--game.params.rooms", "3"), "hint: game.params.rooms=VALUE"),
        (("run", "--seed", "x"), "--seed"),
        (("run", "cokking16"), "did you mean cooking16?"),
        (("run", "", "--again"), "one of the arguments is empty"),
        (("eval", "toy", " "), "one of the arguments is empty"),
        (("demos", "toy", "--again", "--out", ""), "one of the arguments is empty: --out ''"),
        (("demos", "toy", "--again", "--out="), "one of the arguments is empty: --out="),
        (("report", ""), "one of the arguments is empty: report ''"),
        (("demos", "--preset", ""), "one of the arguments is empty: --preset ''"),
        (("run", "toy", "smoke"), "two presets are given: toy and smoke"),
        (("run", "toy", "there"), "neither a setting nor a preset"),
        (("run", "toy", "runs/x"), "a preset and a folder are given: toy and runs/x"),
        (("run", "runs/x", "toy"), "a preset and a folder are given: toy and runs/x"),
        (("run", "toy", "--preset", "smoke"), "toy is a preset, not a run directory"),
        (("demos", "cookingworld"), "cookingworld is a game, not a run directory"),
        (("run", "babyai"), "game.name=babyai plays it"),
        (("run", "jericho:games/zork1.z3"), "game.name=jericho:games/zork1.z3 plays it"),
        (("demos", "--preset", "babyai"), "babyai is a game, not a preset"),
        (("check-game", "coin", "game.limit=6"), "game.limit=6 is no parameter of a game"),
        (("run", "toy", "ppo.iteration=3"), "did you mean ppo.iterations?"),
        (("run", "game.name=textworld-coin", "game.params.nosuch=1"), "unknown parameter 'nosuch'"),
        (("run", "cooking16", "game.params.nosuch=1"), "unknown parameter 'nosuch'"),
        (("demos", "game.name=cookinworld", "--out", "a"), "did you mean cookingworld?"),
        (("run", "toy", "ppo.gamma=7"), "less than or equal to 1"),
        (("run", "toy", "ppo=3"), "ppo is a section, not a setting"),
        (("run", "toy", "--config", "none.yaml"), "cannot read none.yaml"),
        (("run", "toy", "--seed", "-3"), "greater than or equal to 0"),
        (("sft", "smoke"), "--preset smoke"),
        (("ppo", "a", "b"), "neither a setting nor a run directory"),
        (("eval", "a", "--out", "b"), "two run directories"),
        (("report",), "there is no run in runs/"),
        (("report", "none"), "there is no run directory none"),
        (("report", "a" * 300), "is too long for a file name"),
        (("eval", "--api-model", "m"), "without --api there is no effect of --api-model"),
        (("eval", "--api-retries", "6"), "without --api there is no effect of --api-retries"),
        (("compare",), "argument"),
        (("compare", "none"), "there is no run directory none"),
        (("watch", "none"), "there is no run directory none"),
        (("watch", "--decoding", "best"), "--decoding"),
        (("watch", "-q"), "--quiet leaves nothing to watch"),
        (("play", "coinn"), "neither a preset nor a game"),
        (("play", "toy", "--seed", "5000"), "seed 5000 is in no fold"),
        (("play", "coin", "game.params.numLocations=99"), "numLocations=99"),
        (("bench",), "argument"),
        (("bench", "nope"), "benchmarks: rollout"),
        (("run", "runs/none"), "there is no run in runs/none"),
        (("doctor", "--model", "embedded", "model.contxt=9"), "did you mean model.context?"),
        (("doctor", "--model", "a", "model.name=b"), "two models are given: --model a and model.name=b"),
        (("doctor", "--model", "a", "toy"), "a preset is named by --preset"),
        (("doctor", "model.context=9"), "grue doctor model.context=9 --model NAME"),
        (("doctor", "--preset", "other"), "none is named beside --preset other"),
    ],
)
def test_mistakes_in_arguments_exit_with_2_and_say_which(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = grue(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_json_errors_are_for_machines(tmp_path: Path) -> None:
    done = grue("run", "toy", "ppo.iteration=3", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert json.loads(done.stdout) == {
        "error": "unknown setting ppo.iteration",
        "hint": "did you mean ppo.iterations?",
        "exit_code": 2,
    }


def test_debug_shows_where_an_error_came_from(tmp_path: Path) -> None:
    assert "Traceback" in grue("run", "cokking16", cwd=tmp_path, GRUE_DEBUG="1").stderr


def _exit_code(error: BaseException) -> int:
    def work(_: object) -> None:
        raise error

    with pytest.raises(typer.Exit) as caught:
        perform(work)
    return caught.value.exit_code


def test_each_end_has_its_exit_code(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/grue", "run", "toy", "model.name=a b"])
    assert _exit_code(TrainingError("the loss is nan", hint="lower the rate")) == 1
    assert capsys.readouterr().err == "error: the loss is nan\nhint: lower the rate\n"
    assert _exit_code(common.UsageError(ConfigError("what?"))) == 2
    assert _exit_code(Interrupted(2)) == 130
    assert "To go on:\n  grue run toy 'model.name=a b'\n" in capsys.readouterr().err
    assert _exit_code(Interrupted(15)) == 143
    assert _exit_code(KeyboardInterrupt()) == 130
    assert _exit_code(MemoryError("cannot allocate 7 GiB")) == 1
    assert "micro_tokens" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):  # our own mistakes keep their traceback
        perform(lambda _: 1 // 0)


def test_results_go_to_stdout_and_messages_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    def work(say) -> dict[str, object]:
        say("working")
        return {"path": Path("a"), "value": 1.5}

    perform(work, as_json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"path": "a", "value": 1.5}
    assert printed.err == "working\n"
    perform(work, quiet=True)
    assert capsys.readouterr() == ("", "")


def test_errors_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code(GrueError("bad \x1b]52;c;cGF5bG9hZA==\x07text \x1b[2Jhere")) == 1
    assert capsys.readouterr().err == "error: bad text here\n"


def test_a_run_is_taken_up_by_its_folder(tmp_path: Path) -> None:
    from grue.config import load_config
    from grue.storage.run import Run

    first = load_config("toy", ["ppo.gamma=0.5"], seed=9)
    Run(tmp_path, first)
    assert common.settle(None, [], None, None, tmp_path) == (first, tmp_path)
    assert common.settle(None, ["ppo.lam=0.5"], None, None, tmp_path)[0].ppo.lam == 0.5
    assert common.settle("smoke", [], None, 3, tmp_path)[0] == load_config("smoke", seed=3)
    assert common.settle("toy", [], None, 9, None)[1] == Path("runs/toy-seed9")


def test_a_run_without_its_settings_is_no_new_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "stages.json").write_text("{}")
    for verb in ("run", "sft"):
        done = grue(verb, "a", cwd=tmp_path)
        assert done.returncode == 2 and "its config.yaml is missing" in done.stderr


def test_the_newest_run_is_the_one_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for age, name in ((50, "old"), (10, "new"), (90, "older")):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").touch()
        os.utime(folder / "config.yaml", (time.time() - age, time.time() - age))
    assert common.existing_run(None) == Path("runs/new")
    (tmp_path / "runs" / "old" / "metrics.jsonl").touch()
    assert common.existing_run(None) == Path("runs/old")


def test_a_link_to_nowhere_in_a_run_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "config.yaml").touch()
    (tmp_path / "runs" / "one" / "gone").symlink_to("/nowhere")
    assert common.existing_run(None) == Path("runs/one")


def test_run_takes_a_preset_or_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grue.config import load_config
    from grue.storage.run import Run

    monkeypatch.chdir(tmp_path)
    Run(tmp_path / "mine", load_config("toy"))
    assert common.preset_or_run("mine", None) == (None, Path("mine"))
    assert common.preset_or_run("toy", Path("mine")) == ("toy", Path("mine"))
    assert common.preset_or_run(None, None) == (None, None)
    with pytest.raises(ConfigError, match="two run directories"):
        common.preset_or_run("mine", Path("other"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_full_disk_behind_the_output_is_an_error_and_no_traceback() -> None:
    for arguments in (("play", "toy"), ("doctor", "--json")):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run([sys.executable, "-m", "grue", *arguments], stdout=full, stderr=subprocess.PIPE,
                                  text=True, input="1\n", timeout=120)  # fmt: skip
        assert done.returncode == 1
        assert "the output cannot be written" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_file_that_may_not_be_opened_is_an_error_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def work(say: Progress) -> None:
        raise PermissionError(13, "Permission denied", "runs/a/episodes")

    with pytest.raises(typer.Exit) as left:
        perform(work)
    assert left.value.exit_code == 1
    assert "error: no permission for runs/a/episodes\nhint: ls -ld" in capsys.readouterr().err


def test_a_person_plays_the_toy_game_and_leaves(tmp_path: Path) -> None:
    done = grue("play", "toy", stdin="99\n\n1\n", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "there is no action 99" in done.stdout
    assert "15 steps left" in done.stdout
    assert "> 99\n" in done.stdout  # as in a terminal, where it can be seen
    assert done.stdout.endswith("Good bye.\n")
    left = grue("play", "toy", stdin="quit\n1\n", cwd=tmp_path)
    assert left.stdout.endswith("> quit\n\nGood bye.\n")


def test_a_game_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    failed = grue("play", "coin", "game.java=/nope/java", cwd=tmp_path)
    assert failed.returncode == 1, failed.stdout
    assert "/nope/java" in failed.stderr
    assert "Score" not in failed.stdout


@pytest.mark.skipif(find_spec("alfworld") is not None, reason="the extra [alfworld] is installed")
@pytest.mark.parametrize("verb", ["run", "demos"])
def test_a_run_without_its_engine_is_an_error_and_leaves_no_folder(verb: str, tmp_path: Path) -> None:
    done = grue(verb, "game.name=alfworld", "--out", str(tmp_path / "run"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "error: ALFWorld needs alfworld, which is not installed"
    assert not (tmp_path / "run").exists()


def test_a_game_that_a_person_plays_can_be_recorded(tmp_path: Path) -> None:
    from grue.storage import episodes

    done = grue(
        "play", "toy", "game.limit=2", "--seed", "10000", "--record", "me.jsonl", stdin="look\nlook\n", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "No steps are left" in done.stdout
    (episode,) = episodes.read(tmp_path / "me.jsonl")
    assert (episode.player, episode.task.fold, [turn.action for turn in episode.turns]) == (
        "human",
        "dev",
        ["look"] * 2,
    )


def test_doctor_finds_what_is_there(tmp_path: Path) -> None:
    done = grue("doctor", "--json", "--out", str(tmp_path / "runs"))
    findings = json.loads(done.stdout)
    assert done.returncode == (0 if findings["ok"] else 1)
    checks = {check["name"]: check for check in findings["checks"]}
    assert checks["grue"]["value"] == __version__
    assert checks["games"]["status"] == "ok", checks["games"]
    assert checks["writing"]["status"] == "ok"
    assert {"cores", "memory", "gpu", "python", "embedded base"} <= set(checks)
    assert "qlora" in {extra["name"] for extra in findings["extras"]}
    assert all(check["hint"] for check in checks.values() if check["status"] == "bad")


def test_doctor_takes_a_model_as_an_option_or_as_a_setting() -> None:
    estimates = [
        what_to_estimate(*arguments)
        for arguments in ((["sft.epochs=2"], "m", "toy"), (["model.name=m", "sft.epochs=2"], None, "toy"))
    ]
    assert estimates == [load_config("toy", ["model.name=m", "sft.epochs=2"])] * 2
    assert what_to_estimate(None, None, None) is None


def test_doctor_says_which_library_a_model_s_settings_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    config = what_to_estimate(["model.quantize=nf4"], "embedded", None)
    assert config is not None
    monkeypatch.setattr("grue.errors.find_spec", lambda name: None)
    found = check_model(config)
    assert (found["status"], "needs bitsandbytes, which is not installed" in found["value"]) == ("bad", True)
    assert "[qlora]" in found["hint"]


def test_doctor_sees_a_java_that_does_not_start_and_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    java.chmod(0o755)
    (tmp_path / "blocked").write_text("a file")
    done = grue("doctor", "--json", "--out", str(tmp_path / "blocked"), JAVA_HOME=str(tmp_path))
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["java (JAVA_HOME)"]["status"] == "note"
    assert "exit code 3" in checks["java (JAVA_HOME)"]["value"]
    assert checks["writing"]["status"] == "bad"
    assert done.returncode == 1


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_what_a_code_page_has_no_letters_for_does_not_end_a_run(encoding: str) -> None:
    """Games and models say anything, and a pipe on Windows is no UTF-8."""
    code = "import sys; sys.argv = ['grue', '--version']\ntry: main()\nfinally: print('\u042f')"
    done = subprocess.run(
        [sys.executable, "-c", f"from grue.cli.main import main; {code}"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        check=False,
    )
    assert done.returncode == 0 and done.stdout.endswith(b"\\u042f\n")


def test_without_a_standard_output_a_command_still_works() -> None:
    command = ["sh", "-c", '"$0" -m grue doctor >&-', sys.executable]
    done = subprocess.run(command, capture_output=True, check=False)
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_json_is_json_in_any_code_page(encoding: str) -> None:
    said = {"text": "café \U0001f600"}
    code = f"from grue.cli.main import app, main\nfrom grue.cli.perform import print_json\nprint_json({said!r})"
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=True)
    assert json.loads(done.stdout) == said


def test_a_run_may_have_an_equals_sign_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=0.1").mkdir()
    assert common.split_many(["lr=0.1", "sft.epochs=2"]) == (["lr=0.1"], ["sft.epochs=2"])
    there = f"runs{os.sep}lr=0.1"
    assert common.split_many([there, "model.name=runs/x"]) == ([there], ["model.name=runs/x"])


@pytest.mark.parametrize("given", ["numLocations=99", "game.params={numLocations=99}", "game.params.numLocations=99"])
def test_parameters_of_a_checked_game_are_given_as_in_other_verbs(given: str, tmp_path: Path) -> None:
    done = grue("check-game", "coin", given, cwd=tmp_path)
    assert done.returncode == 1
    assert "coin: numLocations=99 is out of range" in done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("guess.py", "for example guess:Guess"),
        ("./guess:Guess", "'./guess:Guess' does not name a class"),
        ("guess:", "'guess:' does not name a class"),
    ],
)
def test_what_names_no_class_is_one_error(name: str, said: str, tmp_path: Path) -> None:
    done = grue("check-game", name, cwd=tmp_path)
    assert done.returncode != 0
    assert said in done.stderr and "Traceback" not in done.stderr
