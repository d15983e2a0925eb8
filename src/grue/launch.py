"""What a launcher sets in the environment: how many processes a run has, on which machines, and how they connect."""

from __future__ import annotations

import ipaddress
import os
import shlex
import socket
import stat
import sys
from contextlib import suppress
from pathlib import Path

STARTED_HERE = "GRUE_STARTED"  # in the environment of processes that `--processes` has started
# A machine that has lost its network sends nothing, not even that a connection has ended: so we probe it.
QUIET_S, ASK_AGAIN_S, ASK_TIMES = 60, 10, 6


def launched() -> int:
    """How many processes the launcher has started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_follower() -> bool:
    """Is this a process that only helps the leader?"""
    return launched() > 1 and int(os.environ.get("RANK", "0")) > 0


def machines() -> int:
    """How many machines the run has; 1 without a launcher."""
    return int(os.environ.get("GROUP_WORLD_SIZE", "1"))


def processes_here() -> int:
    """How many processes of the run this machine has."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or launched())


def speaks_here() -> bool:
    """Is this the process that prints, on its machine, the messages that all processes have in common?"""
    return launched() == 1 or os.environ.get("LOCAL_RANK", "0") == "0"


def here() -> str:
    """This process, for messages: with the machine's name where there are several."""
    process = f"process {os.environ.get('RANK', '0')}"
    return f"{process} on {socket.gethostname()}" if machines() > 1 else process


def this_command(but: str = "") -> str:
    """The command line that was given, ready to be pasted: without the program's folder, with the launcher.

    `but` is an option to leave out.
    """
    program = _launcher() if launched() > 1 and STARTED_HERE not in os.environ else [Path(sys.argv[0]).name]
    return shlex.join([*program, *(part for part in sys.argv[1:] if part != but)])


def _launcher() -> list[str]:
    places = []
    if machines() > 1:
        places = ["--num_machines", str(machines()), "--machine_rank", os.environ.get("GROUP_RANK", "0")]
        places += ["--main_process_ip", os.environ.get("MASTER_ADDR", "")]
        places += ["--main_process_port", os.environ.get("MASTER_PORT", "")]
    return ["accelerate", "launch", "--multi_gpu", "--num_processes", str(launched()), *places, "-m", "grue"]


def choose_interface() -> None:
    """Have gloo listen on the interface that reaches the first machine.

    By default it listens at the address of the machine's own name, often the loopback, which no other can reach.
    """
    if machines() > 1 and "GLOO_SOCKET_IFNAME" not in os.environ:
        interface = interface_to(os.environ.get("MASTER_ADDR", ""))
        if interface:
            os.environ["GLOO_SOCKET_IFNAME"] = interface


def interface_to(host: str) -> str:
    """The network interface through which this machine reaches `host`; "" if that cannot be determined."""
    import psutil

    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as asking:
            asking.connect(address)  # for datagrams this sends nothing, it only finds the route
            mine = asking.getsockname()[0]
    except OSError:
        return ""
    if ipaddress.ip_address(mine).is_loopback and not _is_loopback(host):
        return ""  # `host` is this machine's own name, which others resolve to another address
    found = (name for name, had in psutil.net_if_addrs().items() if any(a.address == mine for a in had))
    return next(found, "")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def ask_for_life() -> None:
    """Have Linux end the connections of this process whose other end has been silent for two minutes.

    Otherwise gloo would wait as long as it does for a process that is playing. On an idle connection the other
    machine's system answers the probes, so a slow process is not cut off.
    """
    if sys.platform != "linux" or machines() == 1:
        return
    for opened in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # such as the descriptor of this list, which is closed by now
            if stat.S_ISSOCK(os.fstat(int(opened.name)).st_mode):
                with socket.socket(fileno=os.dup(int(opened.name))) as connection:
                    _watch(connection)


def _watch(connection: socket.socket) -> None:
    if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, QUIET_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_AGAIN_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ASK_TIMES)
        # the same for data that was sent but not acknowledged
        whole_ms = 1000 * (QUIET_S + ASK_AGAIN_S * ASK_TIMES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, whole_ms)
