"""Asks an OpenAI-compatible endpoint for a chat model's replies: attempts, time-outs, proxies, tokens and cost."""

from __future__ import annotations

import http.client
import json
import logging
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from grue.api.connection import connect, proxy_of
from grue.api.endpoint import Endpoint
from grue.errors import GrueError
from grue.storage import jsonl

_log = logging.getLogger(__name__)

RETRIED = frozenset((408, 409, 425, 429, *range(500, 600))) - {501, 505}  # gateways use codes of their own
OF_THE_REQUEST = frozenset((400, 413, 422))  # a filter, a conversation that is too long: the next game may be fine
MAX_REPLY_BYTES = 4_000_000
MAX_WAIT_S = 120.0
CONNECT_S = 10.0  # to reach an endpoint or give up; a connection attempt cannot be interrupted
# names of errors that pass, as gateways and APIs call them; "insufficient_quota" does not
_PASSING = re.compile(r"rate.?limit|overload|unavailable|time.?out|server.?error|resource.?exhausted", re.IGNORECASE)
_THOUGHT = re.compile(r"<think>.*?(</think>|$)", re.DOTALL)


class ApiError(GrueError, RuntimeError):
    """The endpoint refused, or could not be reached in any attempt."""


class RefusedError(ApiError):
    """The endpoint refused this particular request."""


COUNTS, TOKENS = ("requests", "retries", "empty", "cut"), ("prompt_tokens", "completion_tokens")


@dataclass
class Usage:
    """What has been asked so far, by all games."""

    requests: int = 0
    retries: int = 0
    empty: int = 0  # replies without text
    cut: int = 0  # replies cut off at max_tokens
    prompt_tokens: int = 0
    completion_tokens: int = 0
    untold: int = 0  # answers that did not say how many tokens they took
    seconds: float = 0.0  # spent waiting for answers, summed over games that wait at the same time

    def since(self, before: Usage) -> Usage:
        """What has been asked after `before`."""
        return Usage(**{one.name: getattr(self, one.name) - getattr(before, one.name) for one in fields(self)})

    def to_dict(self, prices: tuple[float, float] | None) -> dict[str, Any]:
        """With the cost, None if no prices are known. Tokens are None too if the endpoint does not report them."""
        tokens: dict[str, int | None] = dict.fromkeys(TOKENS)
        cost = None
        if not self.untold:
            tokens = {name: getattr(self, name) for name in TOKENS}
            if prices is not None:
                cost = round((self.prompt_tokens * prices[0] + self.completion_tokens * prices[1]) / 1e6, 12)
        counts = {name: getattr(self, name) for name in COUNTS}
        return {**counts, **tokens, "seconds": round(self.seconds, 3), "cost": cost}


class ChatClient:
    """Asks one endpoint; many threads may do so at once. The usage of each answer is appended to the file `spent`."""

    def __init__(self, endpoint: Endpoint, spent: Path | None = None) -> None:
        self.endpoint, self.usage = endpoint, Usage()
        self._spent, self._written = spent, Usage()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._jitter = random.Random(0)
        self._open: set[http.client.HTTPConnection] = set()
        self._limit = "max_tokens"

    def stop(self) -> None:
        """Wake all threads that wait for an answer or for a retry; no further request is made."""
        self._stopped.set()
        with self._lock:
            for connection in self._open:
                if connection.sock is not None:
                    with suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)

    def reply(self, messages: Sequence[dict[str, str]]) -> str:
        """The model's answer to a conversation. ApiError when the endpoint refuses or all attempts have failed."""
        for attempt in range(self.endpoint.retries + 1):
            self._check_stopped()
            began = time.monotonic()
            try:
                answer = self._post(messages)
                return self._count(answer, time.monotonic() - began)
            except _RetryError as problem:
                self._charge(problem.usage)
                if attempt == self.endpoint.retries or self._stopped.is_set():
                    never = "is a server running there, and is that its address (most end in /v1)?"
                    left = "the same command, without --again, goes on with the games that are left"
                    kind = RefusedError if problem.of_the_request and self.usage.requests else ApiError
                    raise kind(
                        f"{self.endpoint.url} has not answered in {attempt + 1} attempts: {problem}",
                        hint=left if self.usage.requests else never,
                    ) from problem
                with self._lock:
                    if not self.usage.retries and not self.usage.requests:
                        _log.warning("%s does not answer: %s. Retrying for a while", self.endpoint.url, problem)
                    self.usage.retries += 1
                    self._write()
                    jitter = 0.5 + self._jitter.random()
                self._stopped.wait(min(MAX_WAIT_S, problem.wait_s or self.endpoint.backoff_s * 2**attempt * jitter))
        raise AssertionError("unreachable")

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise ApiError(f"{self.endpoint.url} is no longer asked")

    def _post(self, messages: Sequence[dict[str, str]]) -> dict[str, Any]:
        end, limit = self.endpoint, self._limit
        body = {
            "model": end.model,
            "messages": list(messages),
            "temperature": end.temperature,
            limit: end.max_tokens,
        }
        parts = urlsplit(end.url)
        url = parts._replace(path=f"{parts.path.rstrip('/')}/chat/completions").geturl()
        connection, path, headers = connect(url, end.timeout_s)
        headers |= {"Content-Type": "application/json", "Accept": "application/json"}
        if end.key:
            headers["Authorization"] = f"Bearer {end.key}"
        until = time.monotonic() + end.timeout_s
        with self._lock:
            self._open.add(connection)
        try:
            connection.timeout = min(CONNECT_S, end.timeout_s)
            connection.connect()
            connection.sock.settimeout(end.timeout_s)
            self._check_stopped()  # from here on `stop` finds a socket to shut
            connection.request("POST", path, json.dumps(body).encode(), headers)
            with connection.getresponse() as response:
                data = b""
                # a byte now and then would keep the socket's own time-out from ever firing
                while len(data) < MAX_REPLY_BYTES and (part := response.read1(65536)):
                    data += part
                    if time.monotonic() > until or self._stopped.is_set():
                        raise TimeoutError(f"no whole answer in {end.timeout_s:g} s")
                if len(data) >= MAX_REPLY_BYTES:
                    raise _RetryError(f"an answer of more than {MAX_REPLY_BYTES:,} bytes")
        except ssl.SSLCertVerificationError as error:
            raise ApiError(f"{end.url} has no valid certificate: {error.verify_message}") from error
        except (OSError, http.client.HTTPException) as error:  # time-outs are OSErrors
            proxy = proxy_of(end.url)
            way = f" (through the proxy {proxy.hostname})" if proxy is not None else ""
            # Python 3.11.2 leaves a proxy's refusal open in a frame of the traceback
            raise _RetryError(f"{type(error).__name__}: {error}{way}") from error.with_traceback(None)
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()
        if response.status == 400 and limit == "max_tokens" and b"max_completion_tokens" in data:
            self._limit = "max_completion_tokens"  # newer models of OpenAI use this name and refuse the other
            return self._post(messages)
        if moved := response.getheader("Location") if 300 <= response.status < 400 else None:
            raise ApiError(
                f"{end.url} redirects its callers: HTTP {response.status} to {_without_secrets(moved)}",
                hint="give the address that it names, without /chat/completions",
            )
        return _read(end, response.status, data, response.getheader("Retry-After"))

    def _charge(self, usage: Any) -> None:
        """Add the tokens that an endpoint reports; a broken answer is paid for like a whole one."""
        prompt, completion = (_told(usage, name) or 0 for name in TOKENS)
        with self._lock:
            self.usage.prompt_tokens += prompt
            self.usage.completion_tokens += completion
            if prompt or completion:
                self._write()

    def _count(self, answer: dict[str, Any], seconds: float) -> str:
        try:
            choice = answer["choices"][0]
            text = _text(choice["message"].get("content"))
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            self._charge(answer.get("usage"))
            said = f"{self.endpoint.url} answers with something other than a chat completion"
            if self.usage.requests:  # to others it has answered as it should: a filter may do this
                raise RefusedError(said) from error
            raise ApiError(said, hint="the address ends in /v1") from error
        prompt, completion = (_told(answer.get("usage"), name) for name in TOKENS)
        if self.endpoint.key:  # an endpoint that echoes the key would put it into the run's files
            text = text.replace(self.endpoint.key, "***")
        with self._lock:
            self.usage.requests += 1
            self.usage.seconds += seconds
            self.usage.empty += not spoken(text)
            self.usage.cut += choice.get("finish_reason") == "length"
            self.usage.untold += prompt is None or completion is None
            self.usage.prompt_tokens += prompt or 0
            self.usage.completion_tokens += completion or 0
            self._write()
        return text

    def _write(self) -> None:
        """Append new usage, at once, since a killed run has paid too. Call it with the lock held."""
        if self._spent is not None:
            jsonl.append(self._spent, [self.usage.since(self._written).to_dict(self.endpoint.prices)])
            self._written = replace(self.usage)


def spoken(reply: str) -> str:
    """A reply without the thoughts that some models write before it."""
    # if the prompt has already opened the thought, a reply holds only its end
    return _THOUGHT.sub("", reply).rpartition("</think>")[2].strip()


class _RetryError(Exception):
    """Worth another attempt, after `wait_s` seconds if the endpoint has said so; `usage` is to be paid all the same.

    If none succeeds, the endpoint has failed, or what was asked of it (`of_the_request`).
    """

    def __init__(
        self, text: str, wait_s: float | None = None, usage: Any = None, *, of_the_request: bool = False
    ) -> None:
        super().__init__(text)
        self.wait_s, self.usage, self.of_the_request = wait_s, usage, of_the_request


def _text(content: Any) -> str:
    """A reply's text, which some endpoints give in parts; "" where there is none."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return content if isinstance(content, str) else ""


def _told(usage: Any, name: str) -> int | None:
    """A reported number of tokens, None if it is not a valid number."""
    count = usage.get(name) if isinstance(usage, dict) else None
    if not isinstance(count, int | float) or isinstance(count, bool) or not 0 <= count < 2**53:
        return None
    return int(count)


def _read(endpoint: Endpoint, status: int, data: bytes, retry_after: str | None) -> dict[str, Any]:
    if status in RETRIED:
        raise _RetryError(f"HTTP {status} {_said(endpoint, data)}".strip(), _wait_of(retry_after or ""))
    if status != 200:
        raise _refused(endpoint, status, data)
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _RetryError("an answer that is not JSON") from error
    if not isinstance(answer, dict):
        raise _RetryError("an answer that is not an object")
    choices = answer.get("choices")
    if choices == []:
        raise _RetryError("an answer without choices", usage=answer.get("usage"), of_the_request=True)
    # some gateways report an error with status 200: instead of an answer, or in the middle of one
    if "error" in answer and choices is None:
        told = answer["error"] if isinstance(answer["error"], dict) else {}
        codes = [str(told.get(key)) for key in ("code", "type", "status")]
        if passing := next((code for code in codes if code in map(str, RETRIED) or _PASSING.search(code)), None):
            raise _RetryError(f"HTTP 200 with error {passing}")
        raise _refused(endpoint, status, data)
    if isinstance(choices, list) and isinstance(choices[0], dict) and choices[0].get("finish_reason") == "error":
        raise _RetryError(f"an answer that was broken off: {_said(endpoint, data)}", usage=answer.get("usage"))
    return answer


def _wait_of(retry_after: str) -> float | None:
    """The seconds that a Retry-After header asks for, as a number or as a date; None where it says neither."""
    if re.fullmatch(r"\d+(\.\d+)?", retry_after):
        return float(retry_after)
    with suppress(ValueError, OverflowError):
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    return None


def _without_secrets(url: str) -> str:
    return url.partition("?")[0].rpartition("@")[2]


def _refused(endpoint: Endpoint, status: int, data: bytes) -> ApiError:
    said = _said(endpoint, data)
    hint = "is the key in the environment the right one?" if status in (401, 403) else "check address and model"
    if status == 400 and "temperature" in said:
        hint = "models that think may accept only one temperature: --api-temperature 1"
    kind = RefusedError if status in OF_THE_REQUEST else ApiError
    return kind(f"{endpoint.url} refuses {endpoint.model!r}: HTTP {status} {said}", hint=hint)


def _said(endpoint: Endpoint, data: bytes) -> str:
    """The beginning of what an endpoint has answered, without the key."""
    said = " ".join(data.decode("utf-8", "replace").split())
    return (said.replace(endpoint.key, "***") if endpoint.key else said)[:300]
