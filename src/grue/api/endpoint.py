"""An OpenAI-compatible endpoint: where it is and how it is asked, checked before anything is sent."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from unicodedata import normalize
from urllib.parse import SplitResult, urlsplit

from grue.api.connection import LOCAL, proxy_of
from grue.errors import ConfigError

_QUERY = re.compile(r"(api-version=[A-Za-z0-9._-]+)?")  # what Azure asks for; keys have many names


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
        parts = _address(self.url)
        object.__setattr__(self, "key", self.key.strip())  # keys read from files may end in a line break
        if not (self.key.isascii() and self.key.isprintable()):
            raise ConfigError(
                "the key in the environment holds characters that no key has", hint="is it all on one line?"
            )
        if self.key and parts.scheme == "http" and parts.hostname not in LOCAL:
            raise ConfigError(f"{self.url} would send the key unencrypted", hint="use https://, or unset the key")
        if not self.model.isprintable():
            raise ConfigError(
                f"{self.model!r} is not the name of a model", hint="it holds characters that cannot be printed"
            )
        proxy_of(self.url)


def _address(url: str) -> SplitResult:
    """The parts of an endpoint's address. Messages show it, so ConfigError, without it, where it may hold a secret."""
    parts = None
    with suppress(ValueError):  # for impossible brackets, characters or ports
        split = urlsplit(url)
        if split.scheme in ("http", "https") and split.hostname and split.port != 0:
            parts = split
    # if it is not an address, there is no telling where in it a secret would be
    plain = parts is not None and "@" not in parts.netloc and _QUERY.fullmatch(parts.query) and not parts.fragment
    if not plain and any(sign in normalize("NFKC", url) for sign in "@?#"):
        raise ConfigError(
            "the address of an endpoint holds no key and no password: its path may be followed only by ?api-version=",
            hint="https://HOST/v1, and the key in the environment: export GRUE_API_KEY=... (or OPENAI_API_KEY)",
        )
    if parts is None or not _can_be_sent(parts):
        raise ConfigError(f"{url!r} is not the address of an endpoint", hint="https://HOST/v1")
    return parts


def _can_be_sent(parts: SplitResult) -> bool:
    """Can the host be looked up as a name, and does the path hold only characters that a request may hold?"""
    try:
        (parts.hostname or "").encode("idna")
    except UnicodeError:
        return False
    return parts.path.isascii() and parts.path.isprintable() and " " not in parts.path
