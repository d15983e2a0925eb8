"""Several machines, as far as one can stand for them: two launches that know each other by an address alone.

To each of them its first process has the local rank 0, and each may have another folder, other files, other settings.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from children import start, wait

import tiny
from grue.config import Config, dump_config, override
from grue.errors import GrueError
from grue.launch import interface_to, this_command
from grue.progress import Progress
from grue.storage import checkpoint
from grue.storage.contents import read_evaluation, read_metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and signals")
SMALL = ("ppo.iterations=3", "ppo.dev_every=2", "ppo.warmup_iterations=1", "sft.epochs=1", "eval.games=4")
TIMEOUT_S = 1500.0


def free_port() -> int:
    return random.Random(f"{os.getpid()}/{random.random()}").randrange(20_000, 40_000)


def on_machine(rank: int, port: int) -> None:
    """The environment of the only process of machine `rank` of two."""
    os.environ |= {
        "RANK": str(rank),
        "GROUP_RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
        "CUDA_VISIBLE_DEVICES": "",
    }


def said_by(do: Callable[[], Any]) -> str:
    try:
        do()
    except GrueError as error:
        return f"{error.message}\n{error.hint}"
    return ""


def _meet(rank: int, port: int, folder: Path, model: Path) -> None:
    on_machine(rank, port)
    import torch

    from grue.process_group import join, leave
    from grue.stages import opening, run_stage

    opening.PATIENCE_S = 1.0
    processes = join()
    mine = folder / str(rank)
    mine.mkdir()
    config = tiny.config(model)
    lacking = config.model_copy(update={"model": config.model.model_copy(update={"name": str(mine / "model")})})
    if rank == 0:
        tiny.save(mine / "model")
    other = override(config, [f"ppo.learning_rate={rank + 1}e-5"], rank)
    quiet = Progress(quiet=True)
    # a folder of an earlier run stands there, so that the second process has something to read
    opening.Run(mine / "run", config)
    weights = [torch.arange(100.0), torch.zeros(3, dtype=torch.bfloat16)]
    found = {
        "settings": said_by(lambda: run_stage("demos", other, folder / "run", say=quiet)),
        "nothing written": not (folder / "run").exists(),
        "folder": said_by(lambda: opening.open_run(mine / "run", config, "", processes)),
        "left": sorted(path.name for path in (mine / "run").iterdir()),
        "one folder": said_by(lambda: opening.open_run(folder / "run", config, "", processes)),
        "same weights": said_by(lambda: processes.check_read("w", weights)),
        "weights": said_by(lambda: processes.check_read("w", [weights[0] + rank, weights[1]])),
        "no weights": said_by(lambda: processes.check_read("w", weights if rank == 0 else [])),
        "versions": said_by(lambda: processes.same_everywhere({"torch": 2, ("peft", "trl")[rank]: 1})),
        "watched": watched(),
    }
    from grue.models.skeleton import check_model

    def check() -> None:
        with processes.together():
            check_model(lacking.model, lacking.policy)

    found["model"] = said_by(check)
    group = torch.distributed.distributed_c10d._get_default_group()
    found["patience_s"] = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    processes.wait()
    (folder / f"found-{rank}.json").write_text(json.dumps(found))
    leave()


def watched() -> bool:
    """Is the other end of every connection between the two asked for signs of life?"""
    asked = []
    for link in psutil.Process().net_connections("tcp"):
        if link.status == psutil.CONN_ESTABLISHED:
            with socket.socket(fileno=os.dup(link.fd)) as connection:
                asked.append(bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)))
    return bool(asked) and all(asked)


@pytest.mark.slow
def test_what_differs_between_machines_is_one_error_on_each(tiny_folder: Path, tmp_path: Path) -> None:
    port = free_port()
    children = [start(_meet, rank, port, tmp_path, tiny_folder) for rank in range(2)]
    assert [wait(child) for child in children] == [0, 0]
    first, second = (json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in range(2))
    for found in (first, second):
        who = f"process 1 on {socket.gethostname()}"
        settings = f"{who} differs from the first: seed (1, not 0), ppo.learning_rate (2e-05, not 1e-05)"
        assert found["settings"].splitlines()[0] == settings
        assert found["nothing written"]
        missing = f"{who} differs from the first: peft (missing, not 1), trl (1, not missing)"
        assert found["versions"].splitlines()[0] == missing
        # each finds its own folder, the second one's being that of an older run
        folder = f"in {who}: {tmp_path / '1' / 'run'} is not the folder in which the first process began the run"
        assert found["folder"].splitlines()[0] == folder
        assert "all machines share" in found["folder"]
        assert found["left"] == [".lock", "config.yaml"]
        assert (found["one folder"], found["same weights"]) == ("", "")
        assert found["weights"].startswith("the processes have read different weights: w")
        assert found["no weights"] == found["weights"]
        assert found["model"].startswith(f"in {who}: there is no folder")
        assert found["patience_s"] == 6 * 3600  # to come takes minutes at most, to play a while takes hours
        assert found["watched"] or sys.platform != "linux"


def _mistyped(rank: int, port: int, folder: Path) -> None:
    """A command of which only one machine finds the run."""
    on_machine(rank, port)
    os.dup2(os.open(folder / f"said-{rank}", os.O_CREAT | os.O_WRONLY), 2)
    (folder / "0").mkdir(exist_ok=True)
    sys.argv = ["grue", "demos", "--preset", "toy", "--out", str(folder / "0" / "run"), "--quiet"]
    if rank == 1:
        sys.argv = ["grue", "ppo", str(folder / "1"), "--quiet"]
    from grue.cli.main import main

    main()


def test_a_usage_error_of_one_machine_is_told_on_the_other(tmp_path: Path) -> None:
    port = free_port()
    children = [start(_mistyped, rank, port, tmp_path) for rank in range(2)]
    assert [wait(child) for child in children] == [1, 2]
    said = f"there is no run in {tmp_path / '1'}"
    assert (tmp_path / "said-1").read_text().startswith(f"error: {said}\nhint: ")
    assert (tmp_path / "said-0").read_text().startswith(f"error: in process 1 on {socket.gethostname()}: {said}")
    assert not (tmp_path / "0" / "run").exists()


def test_the_interface_is_the_one_that_leads_to_the_first_machine() -> None:
    loopback = interface_to("127.0.0.1")
    assert any(had.address == "127.0.0.1" for had in psutil.net_if_addrs()[loopback])
    assert interface_to("no-such-machine.invalid") == ""


def test_the_command_to_go_on_is_that_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/x/grue", "run", "toy"])
    for name, value in {"WORLD_SIZE": 8, "GROUP_WORLD_SIZE": 2, "GROUP_RANK": 1, "MASTER_PORT": 29500}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    assert this_command() == (
        "accelerate launch --multi_gpu --num_processes 8 --num_machines 2 --machine_rank 1 "
        "--main_process_ip 10.0.0.1 --main_process_port 29500 -m grue run toy"
    )


@pytest.fixture(scope="module")
def config(tiny_folder: Path) -> Config:
    return tiny.config(tiny_folder, *SMALL, "ppo.kl_coef=0.1", "sft.micro_tokens=256")


Launch = subprocess.Popen[str]


def launch(config: Config, out: Path, verb: str, machines: int = 2, count: int = 4) -> list[Launch]:
    """One launch a machine, each in a session of its own."""
    file, port = out.with_suffix(".yaml"), free_port()
    file.write_text(dump_config(config), encoding="utf-8")
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(count)]
    program = ["-m", "grue", verb, "--config", str(file), "--out", str(out), "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    started = []
    for rank in range(machines):
        place = ["--num_machines", str(machines), "--machine_rank", str(rank), "--main_process_port", str(port)]
        place += ["--main_process_ip", "127.0.0.1"] if machines > 1 else []
        started.append(
            subprocess.Popen(
                [*launcher, *place, *program],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                env=environment,
            )
        )
    return started


def finish(launches: list[Launch]) -> list[str]:
    return [each.communicate(timeout=TIMEOUT_S)[0] for each in launches]


def weights(out: Path, stage: str) -> dict[str, torch.Tensor]:
    path = checkpoint.latest_valid(out / "checkpoints" / stage)
    assert path is not None
    return checkpoint.load(path).tensors["model"]


def assert_equal(one: Path, other: Path) -> None:
    import torch

    for stage in ("sft", "ppo"):
        ours, theirs = weights(one, stage), weights(other, stage)
        assert set(ours) == set(theirs)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours), stage


@pytest.fixture(scope="module")
def two(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run by two launches of two processes."""
    out = tmp_path_factory.mktemp("runs") / "two"
    launches = launch(config, out, "run")
    said = finish(launches)
    assert [each.returncode for each in launches] == [0, 0], said
    return out


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_two_launches_do_what_one_does_bit_for_bit(config: Config, two: Path, tmp_path: Path, sharding: str) -> None:
    wanted = override(config, [f"model.sharding={sharding}"], None)
    if sharding == "fsdp":
        two = tmp_path / "two"
        finish(launch(wanted, two, "run"))
    one = tmp_path / "one"
    finish(launch(wanted, one, "run", machines=1))
    assert_equal(one, two)
    assert read_evaluation(one) == read_evaluation(two) != []


def workers(launcher: Launch) -> list[psutil.Process]:
    return [p for p in psutil.Process(launcher.pid).children(recursive=True) if "RANK" in p.environ()]


def wait_for(out: Path, step: int, launches: list[Launch]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not ((out / "metrics.jsonl").exists() and len(read_metrics(out, "ppo")) >= step):
        assert all(each.poll() is None for each in launches)
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [0, 1])
def test_a_kill_on_one_machine_ends_both_and_the_run_goes_on_exactly(
    config: Config, two: Path, tmp_path: Path, machine: int
) -> None:
    out = tmp_path / "broken"
    launches = launch(override(config, ["ppo.save_every_s=0"], None), out, "run")
    wait_for(out, 2, launches)  # the second is logged when the first has been saved
    every = [worker for each in launches for worker in workers(each)]
    workers(launches[machine])[0].kill()
    said = finish(launches)
    assert all(each.returncode for each in launches)
    assert "error: another process of this run has ended" in said[1 - machine]
    assert "on whichever machine; the same command, without --again, goes on" in said[1 - machine]
    assert not psutil.wait_procs(every, timeout=30)[1]
    finish(launch(config, out, "ppo"))
    assert_equal(out, two)


@pytest.mark.slow
def test_ctrl_c_on_the_second_machine_saves_and_ends_both(config: Config, tmp_path: Path) -> None:
    out = tmp_path / "run"
    launches = launch(override(config, ["ppo.iterations=100000", "ppo.dev_every=0"], None), out, "run")
    wait_for(out, 2, launches)
    os.killpg(launches[1].pid, signal.SIGINT)
    for machine, said in enumerate(finish(launches)):
        assert said.count("interrupted by SIGINT; everything is saved") == 1
        assert f"--machine_rank {machine} --main_process_ip 127.0.0.1" in said
    path = checkpoint.latest_valid(out / "checkpoints" / "ppo")
    assert path is not None
    assert [row["step"] for row in read_metrics(out, "ppo")] == list(range(1, checkpoint.load(path).step + 1))
