"""A chat model behind an endpoint: what is asked, what is made of replies, and what happens when the endpoint fails."""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import chat_server
import tiny
from grue import games
from grue.api.client import ApiError, ChatClient
from grue.api.endpoint import Endpoint
from grue.api.player import ApiPlayer, parse_reply
from grue.errors import ConfigError
from grue.games.play import play
from grue.stages.api_play import play_all
from grue.types import Episode, Outcome

Start = Callable[..., tuple[str, Path]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Start]:
    """Start a server process; gives its address and the file of requests."""
    running = []

    def start(pick: str = "first", faults: Sequence[Any] = (), key: str = "", delay: float = 0) -> tuple[str, Path]:
        log = tmp_path / f"requests-{len(running)}.jsonl"
        plan = {"pick": pick, "faults": list(faults), "key": key, "delay": delay, "log": str(log)}
        command = [sys.executable, chat_server.__file__, json.dumps(plan)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        return f"http://127.0.0.1:{int(process.stdout.readline())}/v1", log

    yield start
    for process in running:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def requests(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def client(url: str, **changes: Any) -> ChatClient:
    return ChatClient(Endpoint(url, "some-model", **{"backoff_s": 0.01, "timeout_s": 30.0, **changes}))


ASK = [{"role": "user", "content": "Valid actions:\nlook\ntake key"}]


def test_a_game_is_one_conversation(serve: Start) -> None:
    url, log = serve("last", key="s3cret")
    asked = client(url, key="s3cret", prices=(2.0, 10.0))
    game, (task,) = games.make("toy"), tiny.tasks(1)
    episode = play(game, task, ApiPlayer(asked, "api:some-model"))
    assert episode.player == "api:some-model"
    assert all(turn.action == turn.observation.actions[-1] for turn in episode.turns if turn.observation.actions)
    assert all(turn.valid for turn in episode.turns)
    seen = requests(log)
    assert len(seen) == episode.steps == asked.usage.requests
    assert {entry["path"] for entry in seen} == {"/v1/chat/completions"}
    assert {entry["key"] for entry in seen} == {"Bearer s3cret"}
    first, second = (entry["body"]["messages"] for entry in seen[:2])
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user"]
    assert second[:2] == first  # only appended to
    assert episode.turns[0].observation.goal in first[1]["content"]
    assert f"You have {task.limit} steps" in first[1]["content"]
    assert second[2]["content"] == episode.turns[0].action
    assert seen[0]["body"]["temperature"] == 0
    prompt = sum(len(entry["body"]["messages"][-1]["content"].split()) for entry in seen)
    written = sum(len(turn.action.split()) for turn in episode.turns)
    used = asked.usage.to_dict((2.0, 10.0))
    assert (used["prompt_tokens"], used["completion_tokens"]) == (prompt, written)
    assert used["cost"] == pytest.approx((2 * prompt + 10 * written) / 1e6, abs=1e-6)
    assert asked.usage.to_dict(None)["cost"] is None


def test_a_reply_that_is_no_action_costs_its_step_and_is_counted(serve: Start) -> None:
    url, _ = serve("I would rather sing")
    episode = play(games.make("toy"), tiny.tasks(1, limit=3)[0], ApiPlayer(client(url), "api"))
    assert episode.outcome is Outcome.LIMIT
    assert [(turn.action, turn.valid) for turn in episode.turns] == [("I would rather sing", False)] * 3


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("take key", "take key"),
        ("  > Take Key.\n", "take key"),
        ('"take key"', "take key"),
        ("Action: take key", "take key"),
        ("action: **Take  key**", "take key"),
        ("1. `take key`.", "take key"),
        ('"take key".', "take key"),
        ("<think>look? no, take key</think>\ntake key", "take key"),
        ("<think>look\nlook", ""),
        ("they are:\nlook\ntake key\n</think>\n\ntake key", "take key"),  # the prompt has opened the thought
        ("The key is useful.\ntake key", "take key"),
        ("take the key", "take the key"),
        ("", ""),
        ("x" * 500, "x" * 300),
    ],
)
def test_replies_by_hand(reply: str, action: str) -> None:
    assert parse_reply(reply, ("look", "take key")) == action


@pytest.mark.parametrize(
    ("reply", "actions", "played"),
    [
        ("**1**", ("-1", "1"), "1"),
        ("`5`", ("- 5", "5"), "5"),
        ("4. Door", ("3. door", "4. door"), "4. door"),
        ("**door**", ("3. door", "4. door"), "door"),  # which of them cannot be told: no action
    ],
)
def test_a_reply_that_may_mean_two_actions_means_the_more_literal_one(
    reply: str, actions: tuple[str, ...], played: str
) -> None:
    assert parse_reply(reply, actions) == played


@pytest.mark.parametrize("action", ['say "xyzzy"', "- 5", "5", "...", "*wait*", "LOOK", "look"])
def test_an_action_may_have_quotes_dashes_and_capitals_of_its_own(action: str) -> None:
    assert parse_reply(f"Well.\n {action}\n", ('say "xyzzy"', "- 5", "5", "...", "*wait*", "look", "LOOK")) == action


@pytest.mark.parametrize(
    "fault",
    [429, [429, "Thu, 01 Jan 1970 99999999999999999999:00:00 GMT"], 500, 503, 524, "drop", "garbage"],
)
def test_faults_that_pass_are_retried(fault: int | str | list[Any], serve: Start) -> None:
    url, log = serve("take key", [fault, fault])
    asked = client(url)
    assert asked.reply(ASK) == "take key"
    assert (asked.usage.requests, asked.usage.retries) == (1, 2)
    assert [entry["fault"] for entry in requests(log)] == [fault, fault, None]


def test_an_answer_that_does_not_come_is_not_waited_for(serve: Start) -> None:
    url, _ = serve("take key", ["hang"])
    asked = client(url, timeout_s=1.0)
    assert asked.reply(ASK) == "take key"
    assert asked.usage.retries == 1


def test_the_endpoint_may_say_how_long_to_wait(serve: Start) -> None:
    url, log = serve("take key", [[429, 1.5]])
    assert client(url, backoff_s=0.0).reply(ASK) == "take key"
    first, second = (entry["time"] for entry in requests(log))
    assert second - first >= 1.5


def test_the_endpoint_may_say_until_when_to_wait(serve: Start) -> None:
    begin = formatdate(time.time() + 3, usegmt=True)  # of whole seconds
    url, log = serve("take key", [[429, begin]])
    assert client(url, backoff_s=0.0).reply(ASK) == "take key"
    first, second = (entry["time"] for entry in requests(log))
    assert second - first >= 1.5


def test_waits_grow_from_attempt_to_attempt(serve: Start) -> None:
    url, log = serve("take key", [500] * 4)
    client(url, backoff_s=0.2).reply(ASK)
    times = [entry["time"] for entry in requests(log)]
    waits = [after - before for before, after in itertools.pairwise(times)]
    assert all(wait >= 0.2 * 2**i * 0.5 for i, wait in enumerate(waits))
    assert len(waits) == 4


def test_an_endpoint_that_stays_broken_ends_in_one_error(serve: Start) -> None:
    url, log = serve("take key", [503] * 50)
    with pytest.raises(ApiError, match=r"has not answered in 3 attempts: HTTP 503 .*told to"):
        client(url, retries=2).reply(ASK)
    assert len(requests(log)) == 3


@pytest.mark.parametrize(("status", "hint"), [(401, "key"), (404, "address and model"), (400, "address and model")])
def test_what_no_retry_mends_is_said_at_once(status: int, hint: str, serve: Start) -> None:
    url, log = serve("take key", [status] * 9)
    with pytest.raises(ApiError, match=f"HTTP {status}.*told to") as caught:
        client(url).reply(ASK)
    assert hint in caught.value.hint
    assert len(requests(log)) == 1


def test_a_key_is_never_shown(serve: Start) -> None:
    url, _ = serve(key="right")
    asked = client(url, key="wr0ng")
    with pytest.raises(ApiError, match=r"told was \*\*\*") as caught:
        asked.reply(ASK)
    assert "wr0ng" not in str(caught.value)
    assert "wr0ng" not in repr(asked.endpoint)


@pytest.mark.parametrize(
    "url",
    ["ftp://x/v1", "localhost:8000", "", "http://x/v 1", "http://x/v\xe9", "http://a..b/v1", f"http://{'a' * 70}.b"],
)
def test_addresses_are_checked(url: str) -> None:
    with pytest.raises(ConfigError, match="not the address"):
        Endpoint(url, "m")


def test_a_name_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not the name of a model"):
        Endpoint("http://x/v1", "caf\udce9")


class Proxy(BaseHTTPRequestHandler):
    """Notes what it is asked for, and what comes through a tunnel first; leads everything else to one server."""

    server: ProxyServer

    def do_POST(self) -> None:
        self.server.asked.append((self.requestline, self.headers.get("Proxy-Authorization")))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        connection = http.client.HTTPConnection(self.server.behind, timeout=30)
        connection.request("POST", urlsplit(self.path).path, body, {"Content-Type": "application/json"})
        with closing(connection), connection.getresponse() as answer:
            data = answer.read()
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def do_CONNECT(self) -> None:
        self.server.asked.append((self.requestline, self.headers.get("Proxy-Authorization")))
        if not self.server.behind:
            self.send_error(407)
            return
        self.send_response(200)
        self.end_headers()
        self.server.tunnelled = self.connection.recv(4096)

    def log_message(self, *_: object) -> None:
        pass


class ProxyServer(ThreadingHTTPServer):
    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), Proxy)
        self.behind, self.tunnelled = behind, b""
        self.asked: list[tuple[str, str | None]] = []


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProxyServer]:
    """What the environment names as the proxy of every address."""
    server = ProxyServer("")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://jo:p%40ss@127.0.0.1:{server.server_port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    yield server
    server.shutdown()
    server.server_close()


JO = "Basic " + base64.b64encode(b"jo:p@ss").decode()


def test_an_endpoint_is_reached_through_the_proxy_of_the_environment(serve: Start, proxy: ProxyServer) -> None:
    url, log = serve()
    proxy.behind = urlsplit(url).netloc
    assert client(url).reply(ASK) == "look"
    assert proxy.asked == []  # what runs on this machine is asked directly
    assert client("http://endpoint.invalid:8000/v1?api-version=1").reply(ASK) == "look"
    asked = "http://endpoint.invalid:8000/v1/chat/completions?api-version=1"
    assert proxy.asked == [(f"POST {asked} HTTP/1.1", JO)]
    assert len(requests(log)) == 2


def test_a_proxy_leads_on_what_is_encrypted_and_sees_no_key(proxy: ProxyServer) -> None:
    proxy.behind = "somewhere"
    with pytest.raises(ApiError, match=r"through the proxy 127\.0\.0\.1"):
        client("https://endpoint.invalid/v1", key="s3cret", retries=0).reply(ASK)
    assert [(line.split()[:2], user) for line, user in proxy.asked] == [(["CONNECT", "endpoint.invalid:443"], JO)]
    assert proxy.tunnelled[:2] == b"\x16\x03"  # the beginning of a TLS handshake
    assert b"s3cret" not in proxy.tunnelled


def test_a_proxy_that_refuses_is_named_and_its_password_is_not(proxy: ProxyServer) -> None:
    with pytest.raises(ApiError, match=r"407.*through the proxy 127\.0\.0\.1") as caught:
        client("https://endpoint.invalid/v1", retries=1).reply(ASK)
    assert len(proxy.asked) == 2
    assert "p@ss" not in str(caught.value) and "p%40ss" not in str(caught.value)


@pytest.mark.parametrize("named", ["socks5://jo:pass@host:1080", "http://", "http://host:port"])
def test_a_proxy_that_is_not_spoken_is_an_error_before_anything_is_played(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", named)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(ConfigError) as caught:
        client("https://endpoint.invalid/v1")
    assert "HTTPS_PROXY=http://HOST:PORT" in caught.value.hint and "pass" not in str(caught.value)
    client("http://127.0.0.1:8000/v1")
    monkeypatch.setenv("no_proxy", "endpoint.invalid")
    client("https://endpoint.invalid/v1")


def test_a_key_is_not_sent_unencrypted_over_a_network() -> None:
    with pytest.raises(ConfigError, match="unencrypted"):
        Endpoint("http://example.com/v1", "m", key="k")
    Endpoint("http://example.com/v1", "m")
    Endpoint("http://127.0.0.1:8000/v1", "m", key="k")


def grue(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "grue", *arguments]
    clean = {k: v for k, v in os.environ.items() if k not in ("OPENAI_API_KEY", "GRUE_API_KEY")}
    return subprocess.run(command, capture_output=True, text=True, timeout=900, env={**clean, **environment})


def test_grue_eval_lets_it_play_beside_the_run_and_goes_on_where_it_stopped(
    serve: Start, tiny_folder: Path, tmp_path: Path
) -> None:
    from grue.config import dump_config
    from grue.storage import episodes

    out, file = tmp_path / "run", tmp_path / "settings.yaml"
    file.write_text(dump_config(tiny.config(tiny_folder, "eval.games=10")), encoding="utf-8")
    # the endpoint breaks in the middle: what was played until then is kept
    broken, _ = serve("first", [None] * 40 + [400] * 99)
    options = ["--api-model", "org/some model", "--api-concurrency", "3", "--api-prices", "1,2", "--quiet"]
    done = grue("eval", "--config", str(file), "--out", str(out), "--api", broken, *options)
    assert done.returncode == 1
    assert "HTTP 400" in done.stderr
    assert "Traceback" not in done.stderr
    (recorded,) = (out / "episodes").glob("api-org-some-model-*-test-greedy.jsonl")
    kept = list(episodes.read(recorded))
    assert 0 < len(kept) < 10

    url, log = serve("first", delay=0.05)
    done = grue("eval", str(out), "--api", url, *options, "--json", OPENAI_API_KEY="abc")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["games"] == 10
    assert result["failed"] == 0
    assert result["invalid"] == 0
    assert result["model"] == "org/some model"
    everything = list(episodes.read(recorded))
    assert len({episode.task for episode in everything}) == len(everything) == 10
    asked = requests(log)
    assert len(asked) == sum(episode.steps for episode in everything[len(kept) :])
    assert 1 < max(entry["most"] for entry in asked) <= 3
    assert {entry["key"] for entry in asked} == {"Bearer abc"}
    assert result["usage"]["requests"] > len(asked)  # those of the command that broke off are in it
    assert result["usage"]["cost"] > 0
    for path in out.rglob("*"):
        assert not path.is_file() or b"abc" not in path.read_bytes().replace(b"abcdef", b""), path


def _evaluated(out: Path, settings: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """The command, in this process: a new one takes seconds to import what it needs."""
    from typer.testing import CliRunner

    from grue.cli.main import app

    command = ["eval", "--config", str(settings), "--out", str(out), "--api", url, "--json", *options]
    done = CliRunner(env={"OPENAI_API_KEY": None, "GRUE_API_KEY": None}).invoke(app, command)
    return subprocess.CompletedProcess(command, done.exit_code, done.stdout, done.stderr)


def _killed(log: Path, asked: int, *arguments: str) -> None:
    """Kill a command as soon as the endpoint has been asked so often: the last requests hang."""
    process = subprocess.Popen([sys.executable, "-m", "grue", *arguments], stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 300
        while (len(requests(log)) if log.exists() else 0) < asked:
            assert process.poll() is None and time.monotonic() < until, process.communicate()
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_what_was_paid_for_before_a_kill_is_in_the_sum(serve: Start, tiny_folder: Path, tmp_path: Path) -> None:
    from grue.config import dump_config
    from grue.storage import episodes

    out, file = tmp_path / "run", tmp_path / "settings.yaml"
    file.write_text(dump_config(tiny.config(tiny_folder, "eval.games=6")), encoding="utf-8")
    options = ["--api-model", "m", "--api-concurrency", "2", "--api-prices", "0.1,0.4", "--quiet"]
    command = ["eval", "--config", str(file), "--out", str(out), *options]
    # both games that are played at once wait for an answer, so all that were given before have been read
    url, first = serve("look", [None] * 29 + ["hang"] * 2)
    _killed(first, 31, *command, "--api", url)
    recorded, spent = out / "episodes" / "api-m-test-greedy.jsonl", out / "api" / "api-m-test-greedy.jsonl"
    kept = len(list(episodes.read(recorded)))
    assert 0 < kept < 6
    with spent.open("a") as torn:
        torn.write('{"requests":7,"retr')
    # killed again with --again before a game has ended: nothing has come in the place of the others
    url, second = serve("look", [None] + ["hang"] * 2)
    _killed(second, 3, *command, "--api", url, "--again")
    url, third = serve("look")
    done = grue(*command, "--api", url, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["games"] == len(list(episodes.read(recorded))) == 6
    assert len(requests(third)) == sum(episode.steps for episode in list(episodes.read(recorded))[kept:])
    answered = [entry for log in (first, second, third) for entry in requests(log) if entry["fault"] is None]
    words, count = sum(len(entry["body"]["messages"][-1]["content"].split()) for entry in answered), len(answered)
    used = json.loads(done.stdout)["usage"]  # "look" is one token
    assert (used["requests"], used["prompt_tokens"], used["completion_tokens"]) == (count, words, count)
    assert used["cost"] == pytest.approx((0.1 * words + 0.4 * count) / 1e6, abs=1e-6)  # some 4e-6 an answer
    assert not [*out.rglob("*.old")]


def test_games_count_only_for_the_model_and_the_temperature_that_played_them(
    serve: Start, tiny_folder: Path, tmp_path: Path
) -> None:
    from grue.config import dump_config

    out, file = tmp_path / "run", tmp_path / "settings.yaml"
    file.write_text(dump_config(tiny.config(tiny_folder, "eval.games=2")), encoding="utf-8")
    url, log = serve("first")
    assert _evaluated(out, file, url, "--api-model", "a/b", "--api-temperature", "0.5").returncode == 0
    played = len(requests(log))
    assert _evaluated(out, file, url, "--api-model", "a:b", "--api-temperature", "0.5").returncode == 0
    assert len(requests(log)) == 2 * played
    stored = (out / "config.yaml").read_bytes()
    other = _evaluated(out, file, url, "eval.bootstrap=300", "--api-model", "a/b", "--api-temperature", "1.5")
    assert other.returncode == 1
    assert "temperature 0.5" in other.stderr and "--again" in other.stderr
    assert (out / "config.yaml").read_bytes() == stored  # a command that is refused changes no settings
    told = _evaluated(out, file, url, "eval.games=1", "--api-model", "a:b", "--api-temperature", "0.5")
    assert f"new settings of {out}: eval.games (2 there, 1 now)" in told.stderr
    again = _evaluated(out, file, url, "--api-model", "a/b", "--api-temperature", "1.5", "--again")
    assert json.loads(again.stdout)["temperature"] == 1.5
    assert json.loads(again.stdout)["usage"]["requests"] == played
    assert len(requests(log)) == 3 * played
    broken, _ = serve("first", [400] * 9)  # as for a key that is mistyped: nothing comes in the place of what is there
    kept = {path: path.read_bytes() for path in out.rglob("api-a-b-*")}
    assert _evaluated(out, file, broken, "--api-model", "a/b", "--api-temperature", "1.5", "--again").returncode == 1
    assert kept == {path: path.read_bytes() for path in out.rglob("api-a-b-*")} != {}
    nowhere = grue("eval", str(tmp_path / "typo"), "--api", url, "--api-model", "a/b")
    assert nowhere.returncode == 2
    assert "there is no run directory" in nowhere.stderr
    assert len(requests(log)) == 3 * played


@pytest.mark.parametrize(
    "odd",
    [
        [400],
        [{"choices": None}],
        [{"choices": [None]}],
        [{"choices": [{"message": None, "finish_reason": "content_filter"}]}],
        [{"choices": [{"finish_reason": "content_filter"}]}],
        [{"choices": []}] * 2,
    ],
    ids=str,
)
def test_one_refused_game_has_failed_and_the_others_go_on(
    odd: list[Any], serve: Start, tiny_folder: Path, tmp_path: Path
) -> None:
    from grue.config import dump_config

    file = tmp_path / "settings.yaml"
    file.write_text(dump_config(tiny.config(tiny_folder, "eval.games=4")), encoding="utf-8")
    url, _ = serve("first", [None] * 5 + odd)
    options = ("--api-model", "m", "--api-concurrency", "1", "--api-retries", "1")
    done = _evaluated(tmp_path / "run", file, url, *options)
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["games"], json.loads(done.stdout)["failed"]) == (3, 1)
    assert "1 of 4 games failed in api-m-test-greedy, the first with: " in done.stderr


def test_that_no_game_was_finished_is_said(serve: Start, tiny_folder: Path, tmp_path: Path) -> None:
    """Also of a model whose name would be too long for a file."""
    from grue.config import dump_config

    file, name = tmp_path / "settings.yaml", "m" * 260
    file.write_text(dump_config(tiny.config(tiny_folder, "eval.games=2")), encoding="utf-8")
    url, _ = serve("first", [None, 400, None, None, 400])
    done = _evaluated(tmp_path / "run", file, url, "--api-model", name, "--api-concurrency", "1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["success"] is None
    assert ": no game was finished; 3 requests" in done.stderr


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"usage": "n/a"}, {"prompt_tokens": None, "cost": None}),
        ({"usage": {"prompt_tokens": "12", "completion_tokens": 3}}, {"prompt_tokens": None, "cost": None}),
        ({"usage": {"prompt_tokens": 1e400, "completion_tokens": 3}}, {"prompt_tokens": None}),
        ({"usage": {"prompt_tokens": 10**30, "completion_tokens": 3}}, {"prompt_tokens": None}),
        ({"usage": {"prompt_tokens": 7, "completion_tokens": 3}}, {"prompt_tokens": 7, "cost": 13e-6}),
        ({"choices": [{"message": {"content": None}, "finish_reason": "length"}]}, {"empty": 1, "cut": 1}),
        ({"choices": [{"message": {"role": "assistant"}, "finish_reason": "length"}]}, {"empty": 1, "cut": 1}),
        ({"choices": [{"message": {"content": [{"type": "text", "text": "look"}]}}]}, {"empty": 0}),
    ],
    ids=str,
)
def test_what_an_endpoint_does_not_say_is_unknown(
    answer: dict[str, Any], expected: dict[str, Any], serve: Start
) -> None:
    url, _ = serve("look", [{"choices": [{"message": {"content": "look"}}], **answer}])
    asked = client(url, prices=(1.0, 2.0))
    assert asked.reply(ASK) == ("" if expected.get("empty") else "look")
    assert asked.usage.to_dict((1.0, 2.0)).items() >= expected.items()


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": []},
        {"error": {"code": 429}},
        {"error": {"code": "429"}},
        {"error": {"code": "rate_limit_exceeded"}},
        {"error": {"type": "overloaded_error"}},
        {"choices": [{"finish_reason": "error", "error": {"code": 502}, "message": {"content": ""}}]},
        "[" * 100_000,
    ],
    ids=lambda a: str(a)[:30],
)
def test_odd_answers_are_asked_for_again(answer: Any, serve: Start) -> None:
    counted = {"usage": {"prompt_tokens": 1000, "completion_tokens": 500}} if isinstance(answer, dict) else {}
    url, _ = serve("look", [answer | counted if counted else answer])
    asked, whole = client(url), client(url)
    assert asked.reply(ASK) == whole.reply(ASK) == "look"
    assert asked.usage.retries == 1
    # what an answer without an error in place of its choices has cost is paid for
    paid = 1000 * ("choices" in answer and isinstance(answer, dict))
    assert asked.usage.prompt_tokens - whole.usage.prompt_tokens == paid
    assert asked.usage.completion_tokens - whole.usage.completion_tokens == paid / 2


def test_a_model_that_calls_the_limit_by_its_newer_name_is_asked_by_that(serve: Start) -> None:
    message = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    )
    url, log = serve("look", [{"status": 400, "error": {"message": message}}])
    asked = client(url, max_tokens=77)
    assert asked.reply(ASK) == asked.reply(ASK) == "look"
    assert [entry["body"].get("max_tokens") for entry in requests(log)] == [77, None, None]
    assert [entry["body"].get("max_completion_tokens") for entry in requests(log)] == [None, 77, 77]


def test_requests_that_were_under_way_learn_the_newer_name_too(serve: Start) -> None:
    refused = {"status": 400, "error": {"message": "Use 'max_completion_tokens' instead."}}
    url, log = serve("look", [refused, refused], delay=0.5)
    asked = client(url)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(asked.reply, [ASK, ASK])) == ["look", "look"]
    assert ["max_tokens" in entry["body"] for entry in requests(log)] == [True, True, False, False]


def test_a_temperature_that_is_refused_is_hinted_at(serve: Start) -> None:
    message = (
        "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported."
    )
    url, _ = serve("look", [{"status": 400, "error": {"message": message}}])
    with pytest.raises(ApiError, match="HTTP 400") as caught:
        client(url).reply(ASK)
    assert "--api-temperature 1" in caught.value.hint


def test_an_error_that_comes_as_an_answer_is_said(serve: Start) -> None:
    url, _ = serve("look", [{"error": {"message": "unknown model"}}])
    with pytest.raises(ApiError, match="unknown model"):
        client(url).reply(ASK)


def test_an_answer_that_drips_is_not_waited_for(serve: Start) -> None:
    url, _ = serve("look", ["drip"])
    asked = client(url, timeout_s=1.0)
    began = time.monotonic()
    assert asked.reply(ASK) == "look"
    assert time.monotonic() - began < 10
    assert asked.usage.retries == 1


def test_who_is_told_to_stop_does_not_wait_for_an_answer(serve: Start) -> None:
    url, log = serve("look", ["hang"])
    asked = client(url, timeout_s=60.0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(asked.reply, ASK)
        while not log.exists():
            time.sleep(0.05)
        began = time.monotonic()
        asked.stop()
        with pytest.raises(ApiError):
            waiting.result()
    assert time.monotonic() - began < 10


def test_who_is_told_to_stop_makes_no_other_attempt(serve: Start) -> None:
    url, log = serve("look", [[503, 60]])
    asked = client(url)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(asked.reply, ASK)
        while not asked.usage.retries:
            time.sleep(0.05)
        asked.stop()
        with pytest.raises(ApiError, match="is no longer asked"):
            waiting.result(10)
    assert len(requests(log)) == 1


def test_who_is_told_to_stop_does_not_wait_for_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port whose queue is full, as one behind a firewall that drops what comes."""
    monkeypatch.setattr("grue.api.client.CONNECT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ThreadPoolExecutor(1) as pool:
        port = full.getsockname()[1]
        queued = [socket.socket() for _ in range(4)]
        for one in queued:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        asked = client(f"http://127.0.0.1:{port}/v1", timeout_s=300.0)
        waiting = pool.submit(asked.reply, ASK)
        time.sleep(0.3)
        asked.stop()
        with pytest.raises(ApiError):
            waiting.result(15)
        for one in queued:
            one.close()


def test_where_an_endpoint_sends_its_callers_is_said(serve: Start) -> None:
    moved = {"Location": "https://u:secret@other/v1/chat/completions?key=secret"}
    url, _ = serve("look", [{"status": 308, "headers": moved}])
    with pytest.raises(ApiError, match="HTTP 308 to other/v1/chat/completions") as caught:
        client(url).reply(ASK)
    assert "secret" not in str(caught.value)


def test_an_answer_that_is_too_long_is_said(serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grue.api.client.MAX_REPLY_BYTES", 2000)
    url, _ = serve("look", [" " * 3000] * 2)
    with pytest.raises(ApiError, match="an answer of more than 2,000 bytes"):
        client(url, retries=1).reply(ASK)


def test_an_empty_answer_is_not_sent_back_empty(serve: Start) -> None:
    """Some endpoints refuse a conversation that holds one."""
    url, log = serve("look", [{"choices": [{"message": {"content": ""}}]}])
    player = ApiPlayer(client(url), "m")
    with closing(games.make("toy")) as game:
        task = tiny.tasks(1)[0]
        player.start(task, game.reset(task))
        assert player.act(game.reset(task)) == ""
        player.act(game.reset(task))
    said = [m["content"] for m in requests(log)[1]["body"]["messages"] if m["role"] == "assistant"]
    assert said == ["(no answer)"]


def test_keys_and_addresses_that_cannot_be_sent_are_not_shown() -> None:
    assert Endpoint("http://127.0.0.1:1/v1", "m", key=" abc\r\n").key == "abc"
    with pytest.raises(ConfigError, match="characters that no key has") as caught:
        Endpoint("http://127.0.0.1:1/v1", "m", key="s3c\nret")
    assert "s3c" not in str(caught.value)
    with pytest.raises(ConfigError, match="not the address"):
        Endpoint("https://example.com:99999/v1", "m")


@pytest.mark.parametrize(
    "url",
    [
        "https://me:s3cret@example.com/v1",
        "https://s3cret@example.com/v1",
        "https://example.com/v1?key=s3cret",
        "https://example.com/v1?s3cret",
        "https://example.com/v1?api-version=1&subscription=s3cret",
        "https://example.com/v1?api-version=1;key=s3cret",
        "https://example.com/v1#s3cret",
        "https://example.com:99999/v1?key=s3cret",
        "https://me:s3cret@[example.com/v1",
        "https://me:s3cret\uff20example.com/v1",
        "me:s3cret@example.com/v1",
        "example.com/v1?key=s3cret",
    ],
)
def test_an_address_with_a_secret_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="holds no key and no password") as caught:
        Endpoint(url, "m")
    assert "GRUE_API_KEY" in caught.value.hint
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    Endpoint("https://example.com/v1?api-version=2024-10-21", "m")


def test_a_secret_in_an_address_stands_nowhere_afterwards(tmp_path: Path) -> None:
    url = "https://example.com/v1?key=s3cret"
    done = grue("eval", "--preset", "toy", "--out", str(tmp_path / "run"), "--api", url, "--api-model", "m", "--json")
    assert done.returncode == 2
    assert "GRUE_API_KEY" in done.stderr
    assert "s3cret" not in done.stderr + done.stdout
    assert not (tmp_path / "run").exists()


def test_a_command_line_without_a_model_is_a_usage_error(tmp_path: Path) -> None:
    done = grue("eval", "--preset", "toy", "--out", str(tmp_path / "run"), "--api", "http://127.0.0.1:9/v1")
    assert done.returncode == 2
    assert "--api-model" in done.stderr
    assert not (tmp_path / "run").exists()


def test_what_has_come_beside_an_error_is_kept() -> None:
    """It is paid for. Two answers come together: one ends its game, the other is the endpoint's last word."""
    both = threading.Barrier(2)

    class Breaking(ChatClient):
        asked = itertools.count()

        def reply(self, messages: Sequence[dict[str, str]]) -> str:
            number = next(self.asked)
            both.wait()
            if number % 2 == 0:
                raise ApiError("the endpoint is gone")
            return "look"

    for _ in range(10):
        kept: list[Episode] = []
        asked = Breaking(Endpoint("http://localhost/v1", "m"))
        with pytest.raises(ApiError, match="is gone"):
            play_all(asked, "api", [games.make("toy"), games.make("toy")], tiny.tasks(2, limit=1), kept.append)
        assert len(kept) <= 1  # the other answer may still have been on its way
        if kept:
            break
    assert kept


def test_an_address_where_nobody_listens_is_said_at_once_and_asked_after(caplog: pytest.LogCaptureFixture) -> None:
    asked = client("http://127.0.0.1:9/v1", retries=2)
    with pytest.raises(ApiError, match="has not answered in 3 attempts") as caught:
        asked.reply(ASK)
    assert caught.value.hint.startswith("is a server running there")
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("http://127.0.0.1:9/v1 does not answer: ")
