"""A chat model behind an OpenAI-compatible endpoint, as a player without training: for evaluation only.

It sees what a person would see: the task, the observation, the valid actions. Whatever it replies is one line of text;
a line that is no valid action is played as it is and counted as invalid.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from grue.errors import ConfigError, GrueError
from grue.games.guard import MAX_ACTION
from grue.types import Observation, Task

SYSTEM = (
    "You play a text adventure. Each turn you are shown what happened and the valid actions. Reply with exactly one of "
    "the valid actions, copied letter by letter, on one line, and nothing else."
)
RETRIED = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
MAX_REPLY_BYTES = 4_000_000
MAX_WAIT_S = 120.0
_THOUGHT = re.compile(r"<think>.*?(</think>|$)", re.DOTALL)
_LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))


class ApiError(GrueError, RuntimeError):
    """The endpoint has refused, or could not be reached in spite of all attempts."""


@dataclass(frozen=True)
class Endpoint:
    """Where a chat model is, and how it is asked."""

    url: str  # up to /v1; "/chat/completions" is added
    model: str
    key: str = field(default="", repr=False)  # sent as a bearer token; never written anywhere
    timeout_s: float = 60.0
    retries: int = 6
    backoff_s: float = 1.0  # before the first retry; doubled each time, with jitter
    temperature: float = 0.0
    max_tokens: int = 256
    prices: tuple[float, float] | None = None  # per million tokens of prompt and completion, in any currency

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{self.url!r} is not the address of an endpoint", hint="https://HOST/v1")
        if self.key and parts.scheme == "http" and parts.hostname not in _LOCAL:
            raise ConfigError(f"{self.url} would send the key unencrypted", hint="use https://, or unset the key")


@dataclass
class Usage:
    """What has been asked so far, by all games."""

    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0  # waited for answers, added up over games that wait at the same time

    def to_dict(self, prices: tuple[float, float] | None) -> dict[str, Any]:
        """With the cost, None where no prices are known."""
        cost = None
        if prices is not None:
            cost = round((self.prompt_tokens * prices[0] + self.completion_tokens * prices[1]) / 1e6, 6)
        counts = {name: getattr(self, name) for name in ("requests", "retries", "prompt_tokens", "completion_tokens")}
        return {**counts, "seconds": round(self.seconds, 3), "cost": cost}


class ChatClient:
    """Asks one endpoint; many threads may do so at once."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint, self.usage = endpoint, Usage()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._jitter = random.Random(0)

    def stop(self) -> None:
        """Wake everybody who waits for another attempt: none is made."""
        self._stopped.set()

    def reply(self, messages: Sequence[dict[str, str]]) -> str:
        """The model's answer to a conversation. ApiError when the endpoint refuses or all attempts have failed."""
        for attempt in range(self.endpoint.retries + 1):
            began = time.monotonic()
            try:
                answer = self._post(messages)
                return self._count(answer, time.monotonic() - began)
            except _RetryError as problem:
                if attempt == self.endpoint.retries or self._stopped.is_set():
                    raise ApiError(
                        f"{self.endpoint.url} has not answered in {attempt + 1} attempts: {problem}",
                        hint="the same command goes on with the games that are left",
                    ) from problem
                with self._lock:
                    self.usage.retries += 1
                    jitter = 0.5 + self._jitter.random()
                self._stopped.wait(min(MAX_WAIT_S, problem.wait_s or self.endpoint.backoff_s * 2**attempt * jitter))
        raise AssertionError("unreachable")

    def _post(self, messages: Sequence[dict[str, str]]) -> dict[str, Any]:
        end = self.endpoint
        parts = urlsplit(end.url)
        body = {
            "model": end.model,
            "messages": list(messages),
            "temperature": end.temperature,
            "max_tokens": end.max_tokens,
        }
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if end.key:
            headers["Authorization"] = f"Bearer {end.key}"
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=end.timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=end.timeout_s)
        try:
            connection.request("POST", f"{parts.path.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers)
            response = connection.getresponse()
            data = response.read(MAX_REPLY_BYTES)
        except ssl.SSLCertVerificationError as error:
            raise ApiError(f"{end.url} has no valid certificate: {error.verify_message}") from error
        except (OSError, http.client.HTTPException) as error:  # time-outs are OSErrors
            raise _RetryError(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        return _read(end, response.status, data, response.getheader("Retry-After"))

    def _count(self, answer: dict[str, Any], seconds: float) -> str:
        try:
            text = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise ApiError(
                f"{self.endpoint.url} answers with something else than a chat completion",
                hint="the address ends in /v1",
            ) from error
        used = answer.get("usage") or {}
        with self._lock:
            self.usage.requests += 1
            self.usage.seconds += seconds
            self.usage.prompt_tokens += int(used.get("prompt_tokens") or 0)
            self.usage.completion_tokens += int(used.get("completion_tokens") or 0)
        return text if isinstance(text, str) else ""


class ApiPlayer:
    """One game played through a client: the conversation so far, in which only new turns are added."""

    def __init__(self, client: ChatClient, name: str) -> None:
        self.name, self._client = name, client
        self._messages: list[dict[str, str]] = []
        self._task = ""

    def start(self, task: Task, observation: Observation) -> None:
        """Say what the task is."""
        self._messages = [{"role": "system", "content": SYSTEM}]
        self._task = f"{observation.goal.strip()} You have {task.limit} steps.\n\n"

    def act(self, observation: Observation) -> str:
        """Ask for the next action: a valid one, or the line that came instead."""
        actions = observation.actions or ()
        listed = "\n\nValid actions:\n" + "\n".join(actions) if actions else ""
        self._messages.append({"role": "user", "content": f"{self._task}{observation.text.strip()}{listed}"})
        self._task = ""
        action = parse_reply(self._client.reply(self._messages), actions)
        self._messages.append({"role": "assistant", "content": action})
        return action


def parse_reply(reply: str, actions: Sequence[str]) -> str:
    """The action that a reply means: its first line that is a valid action, else its first line."""
    lines = [line.strip().strip("`*\"'").lstrip("->• ").strip() for line in _THOUGHT.sub("", reply).splitlines()]
    lines = [line for line in lines if line]
    known = {action.casefold(): action for action in actions}
    for line in lines:
        for text in (line, line.rstrip(".!"), line.removeprefix("Action:").strip()):
            if text.casefold() in known:
                return known[text.casefold()]
    return lines[0][:MAX_ACTION] if lines else ""


class _RetryError(Exception):
    """Worth another attempt, after `wait_s` seconds if the endpoint has said so."""

    def __init__(self, text: str, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.wait_s = wait_s


def _read(endpoint: Endpoint, status: int, data: bytes, retry_after: str | None) -> dict[str, Any]:
    if status in RETRIED:
        wait_s = float(retry_after) if retry_after and re.fullmatch(r"\d+(\.\d+)?", retry_after) else None
        raise _RetryError(f"HTTP {status}", wait_s)
    if status != 200:
        said = " ".join(data[:300].decode("utf-8", "replace").split())
        hint = "is the key in the environment the right one?" if status in (401, 403) else "check address and model"
        raise ApiError(f"{endpoint.url} refuses {endpoint.model!r}: HTTP {status} {said}", hint=hint)
    try:
        answer = json.loads(data)
    except ValueError as error:
        raise _RetryError("an answer that is no JSON") from error
    if not isinstance(answer, dict):
        raise _RetryError("an answer that is no object")
    return answer
