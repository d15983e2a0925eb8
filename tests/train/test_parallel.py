"""Two processes on one run: the same games, the same update as one, exact resume, and no end without a word."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

import tiny
from grue.config import Config, dump_config
from grue.games.toy import ToyGame
from grue.interrupt import Interrupt, Interrupted
from grue.launch import STARTED_HERE, this_command
from grue.parallel import ALONE, Processes, SharedError
from grue.policy.decision import Decoding
from grue.rollout.collect import collect
from grue.storage import checkpoint, episodes
from grue.storage.contents import read_metrics, read_results
from grue.types import Episode, Observation, Task

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
# one process sums gradients in the order of the micro-batches, two in another: float32 rounding, grown over the steps
TOLERANCE = 2e-4
# 40 games: more turns than a minibatch of the critic holds
SMALL = (
    "ppo.iterations=3",
    "ppo.episodes_per_iteration=40",
    "ppo.dev_every=2",
    "ppo.warmup_iterations=1",
    "sft.epochs=1",
    "eval.games=4",
)
TIMEOUT_S = 1500.0


def launch(
    config: Config, out: Path, count: int, *arguments: str, verb: str = "ppo", by: str = "accelerate"
) -> subprocess.Popen[str]:
    """The command in a session of its own, `by` accelerate's launcher (--multi_gpu means several processes) or ours."""
    file = out.with_suffix(".yaml")
    file.write_text(dump_config(config), encoding="utf-8")
    program = ["-m", "grue", verb, "--config", str(file), "--out", str(out), *arguments]
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(count)]
    if count == 1 or by == "grue":
        command = [sys.executable, *program, "--processes", str(count)]
    else:
        command = [*launcher, "--main_process_port", "0", *program]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=environment()
    )


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        said, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, said


def stages(config: Config, out: Path, count: int, last: str = "ppo") -> None:
    for verb in ("demos", "sft", "ppo", "eval")[: ("demos", "sft", "ppo", "eval").index(last) + 1]:
        code, said = finish(launch(config, out, count, "--quiet", verb=verb))
        assert code == 0, said


def weights(out: Path, stage: str, part: str = "model") -> dict[str, torch.Tensor]:
    path = checkpoint.latest_valid(out / "checkpoints" / stage)
    assert path is not None
    return checkpoint.load(path).tensors[part]


@pytest.fixture(scope="module")
def config(tiny_folder: Path) -> Config:
    return tiny.config(tiny_folder, *SMALL, "ppo.kl_coef=0.1", "ppo.game_baseline=true", "sft.micro_tokens=256")


@pytest.fixture(scope="module")
def two(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run by two processes."""
    out = tmp_path_factory.mktemp("runs") / "two"
    code, said = finish(launch(config, out, 2, "--quiet", verb="run"))
    assert code == 0, said
    return out


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(config: Config, two: Path, tmp_path: Path) -> None:
    one = tmp_path / "one"
    stages(config, one, 1, "eval")
    for stage, part in (("sft", "model"), ("ppo", "model"), ("ppo", "baseline")):
        alone, together = weights(one, stage, part), weights(two, stage, part)
        assert set(alone) == set(together)
        for name in alone:
            assert torch.allclose(alone[name], together[name], atol=TOLERANCE), (stage, part, name)
    for stage, names in (("sft", ("loss", "grad_norm")), ("ppo", ("success", "steps_mean", "kl_ref", "value_loss"))):
        rows = zip(read_metrics(one, stage), read_metrics(two, stage), strict=True)
        for ours, theirs in rows:
            for name in names:
                if name in ours:
                    assert ours[name] == pytest.approx(theirs[name], abs=1e-3), (stage, ours["step"], name)
    results = [read_results(out) for out in (one, two)]
    assert results[0] is not None and results[1] is not None
    for policy in ("random", "gold", "base", "sft", "ppo"):
        rows = [found["policies"][policy]["decoding"] for found in results]
        ours, theirs = ({decoding: row["success"] for decoding, row in found.items()} for found in rows)
        assert ours == theirs, policy


@pytest.mark.slow
def test_a_run_of_two_that_was_killed_goes_on_exactly(config: Config, two: Path, tmp_path: Path) -> None:
    """The leader is killed after the first saved iteration; the same command then ends where the unbroken one did."""
    from grue.config import override

    out = tmp_path / "broken"
    stages(config, out, 2, "sft")
    process = launch(override(config, ["ppo.save_every_s=0"], None), out, 2, "--quiet")
    wait_for(out, 2, process)  # the second is logged when the first has been saved
    leader = next(p for p in workers(process) if p.environ().get("RANK") == "0")
    leader.kill()
    code, said = finish(process)
    assert code != 0, said
    assert checkpoint.latest_valid(out / "checkpoints" / "ppo") is not None
    stages(config, out, 2, "ppo")
    ours, theirs = weights(out, "ppo"), weights(two, "ppo")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_two_processes_are_corrected_as_one_is(tiny_folder: Path, tmp_path: Path) -> None:
    rounds = ("dagger.rounds=2", "dagger.games_per_round=6", "dagger.slots=4", "dagger.steps=3")
    more = ("dagger.episodes_per_batch=5", "dagger.dev_games=3", "sft.micro_tokens=256", "dagger.micro_tokens=256")
    config = tiny.config(tiny_folder, *SMALL, *rounds, *more)
    outs = {count: tmp_path / str(count) for count in (1, 2)}
    for count, out in outs.items():
        for verb in ("demos", "sft", "dagger"):
            code, said = finish(launch(config, out, count, "--quiet", verb=verb))
            assert code == 0, said
    # the very same games and corrections in the same order, though each process has played a part of them
    played, together = (list(episodes.read(out / "episodes" / "dagger.jsonl")) for out in outs.values())
    assert [e.task for e in played] == [e.task for e in together]
    for ours, theirs in zip(played, together, strict=True):
        assert [(t.action, t.advice) for t in ours.turns] == [(t.action, t.advice) for t in theirs.turns]
    alone, shared = (weights(out, "dagger") for out in outs.values())
    for name in alone:
        assert torch.allclose(alone[name], shared[name], atol=TOLERANCE), name
    for rows in ("dagger", "dagger_dev"):
        one, two = (read_metrics(out, rows) for out in outs.values())
        assert [row["step"] for row in one] == [row["step"] for row in two] != []
        for name in {"loss", "success", "corrected", "success_greedy"} & set(one[0]):
            assert [row[name] for row in one] == pytest.approx([row[name] for row in two], abs=1e-3), (rows, name)


def wait_for(out: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Until the run has logged PPO's iteration `step`."""
    until = time.monotonic() + TIMEOUT_S
    while not ((out / "metrics.jsonl").exists() and len(read_metrics(out, "ppo")) >= step):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)


def workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The launched processes of a run, without the launcher and without Java."""
    return [p for p in psutil.Process(process.pid).children(recursive=True) if "RANK" in p.environ()]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["accelerate", "grue"])
def test_a_killed_worker_ends_the_run_with_a_message_and_no_orphan(config: Config, tmp_path: Path, by: str) -> None:
    from grue.config import override

    endless = override(config, ["ppo.iterations=100000", "ppo.dev_every=0"], None)
    out = tmp_path / "run"
    stages(endless, out, 1, "sft")
    process = launch(endless, out, 2, "--quiet", by=by)
    wait_for(out, 1, process)
    every = workers(process)
    assert len(every) == 2
    next(p for p in every if p.environ()["RANK"] == "1").kill()
    code, said = finish(process)
    assert code != 0
    assert "error: another process of this run has ended" in said
    assert "hint: its messages say why; the same command, without --again, goes on" in said
    assert said.count("error: another process") == 1
    assert by == "accelerate" or (code == 1 and "process 1 was ended by SIGKILL" in said)
    assert not psutil.wait_procs(every, timeout=30)[1]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["accelerate", "grue"])
def test_ctrl_c_saves_once_and_ends_both(config: Config, tmp_path: Path, by: str) -> None:
    """As a terminal does it: the whole process group gets the signal, and the launcher passes it on."""
    from grue.config import override

    endless = override(config, ["ppo.iterations=100000", "ppo.dev_every=0"], None)
    out = tmp_path / "run"
    stages(endless, out, 1, "sft")
    process = launch(endless, out, 2, "--quiet", by=by)
    wait_for(out, 2, process)
    every = workers(process)
    os.killpg(process.pid, signal.SIGINT)
    code, said = finish(process)
    assert code != 0
    assert said.count("everything is saved") == 1
    assert by == "accelerate" or (code == 130 and "grue ppo --config" in said and "--processes 2" in said)
    path = checkpoint.latest_valid(out / "checkpoints" / "ppo")
    assert path is not None
    assert [row["step"] for row in read_metrics(out, "ppo")] == list(range(1, checkpoint.load(path).step + 1))
    assert not psutil.wait_procs(every, timeout=30)[1]


def test_what_all_processes_would_say_is_said_once(tiny_folder: Path, tmp_path: Path) -> None:
    config = tiny.config(tiny_folder, *SMALL, "policy.top_p=0.5", "policy.kind=choose")
    code, said = finish(launch(config, tmp_path / "run", 2, verb="demos", by="grue"))
    assert code == 0, said
    assert said.count("policy.top_p=0.5 has no effect") == 1
    assert "OMP_NUM_THREADS" not in said


def test_work_is_dealt_out_and_put_back_in_order() -> None:
    work = list(range(11))
    for count in (1, 2, 3, 4, 20):
        parts = [Processes(rank, count).share(work) for rank in range(count)]
        assert sorted(item for part in parts for item in part) == work
        merged = [part[i] for i in range(max(map(len, parts))) for part in parts if i < len(part)]
        assert merged == work


def test_one_process_alone_changes_nothing() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.tensor([1.0, 2.0, 3.0])
    ALONE.sum_gradients([parameter])
    assert parameter.grad.tolist() == [1, 2, 3]
    assert ALONE.total({"a": 1.5}) == {"a": 1.5}
    assert ALONE.first("what") == "what"
    assert not ALONE.any(False)
    assert ALONE.all_of([5, 6], lambda part, places: [a * b for a, b in zip(part, places, strict=True)]) == [0, 6]
    with Interrupt() as interrupt:
        ALONE.check_interrupt(interrupt)
        interrupt.adopt(signal.SIGTERM)
        with pytest.raises(Interrupted):
            ALONE.check_interrupt(interrupt)


class Wordy(ToyGame):
    """A toy game that shows more than a policy can read, for every second seed."""

    def reset(self, task: Task) -> Observation:
        shown = super().reset(task)
        return replace(shown, text="word " * 1000) if task.seed % 2 else shown


def _played(processes: Processes, tasks: list[Task]) -> list[Episode]:
    policy = tiny.policy(tiny.policy_model())
    return collect(policy, [Wordy(), Wordy()], tasks, Decoding(), seed="0", context=512, processes=processes)


def _process(rank: int, count: int, port: int, results: object) -> None:
    import os

    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
    }
    from grue.process_group import join, leave

    processes = join()
    first, second = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2, 2))
    unused = torch.nn.Parameter(torch.zeros(1))
    first.grad = torch.tensor([1.0, 10.0]) * (rank + 1)
    if rank == 1:  # reached by the work of one process only
        second.grad = torch.full((2, 2), 7.0)
    processes.sum_gradients([first, second, unused])
    with Interrupt() as interrupt:
        if rank == 1:
            interrupt.adopt(signal.SIGTERM)
        processes.check_interrupt(Interrupt())  # nobody has been asked to stop
        with pytest.raises(Interrupted):
            processes.check_interrupt(interrupt)
        number = interrupt.number
    with pytest.raises(SharedError) as unreadable:
        _played(processes, tiny.tasks(1, start=1))  # one process has nothing to play
    found = {
        "outcomes": [episode.outcome.value for episode in _played(processes, tiny.tasks(4, limit=2))],
        "unreadable": unreadable.value.message.partition("task, observation")[1],
        "gradients": [first.grad.tolist(), second.grad.tolist() if second.grad is not None else None, unused.grad],
        "squares": processes.all_of(list(range(5)), lambda part, _: [x * x for x in part]),
        "tensors": [t.tolist() for (t,) in processes.gather_tensors([(torch.tensor([float(rank)]),)] * (2 - rank))],
        "total": processes.total({"a": rank + 1.0} if rank else {"a": 1.0, "b": 5.0}),
        "first": processes.first("" if rank == 0 else "broken"),
        "any": (processes.any(rank == 1), processes.any(False)),
        "signal": number,
    }
    results.put((rank, found))  # type: ignore[attr-defined]
    processes.wait()
    leave()


def test_two_processes_agree_on_everything() -> None:
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    port = random.Random(os.getpid()).randrange(20_000, 40_000)
    children = [context.Process(target=_process, args=(rank, 2, port, results)) for rank in range(2)]
    for child in children:
        child.start()
    found = dict(results.get(timeout=900) for _ in children)
    for child in children:
        child.join(120)
        assert child.exitcode == 0
    assert found[0] == found[1]
    assert found[0] == {
        "outcomes": ["limit", "failed", "limit", "failed"],
        "unreadable": "task, observation",
        "gradients": [[3, 30], [[7, 7], [7, 7]], None],
        "squares": [0, 1, 4, 9, 16],
        "tensors": [[0], [1], [0]],
        "total": {"a": 3, "b": 5},
        "first": "broken",
        "any": (True, False),
        "signal": signal.SIGTERM,
    }


def test_the_command_to_go_on_names_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/x/grue", "run", "toy"])
    assert this_command() == "grue run toy"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert this_command() == "accelerate launch --multi_gpu --num_processes 2 -m grue run toy"
    monkeypatch.setenv(STARTED_HERE, "1")
    monkeypatch.setattr("sys.argv", ["/x/grue", "run", "toy", "--processes", "2"])
    assert this_command() == "grue run toy --processes 2"
