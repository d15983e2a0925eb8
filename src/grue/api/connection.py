"""Connections to an endpoint, through the proxy that the environment names (`HTTPS_PROXY`, `NO_PROXY`, ...)."""

from __future__ import annotations

import base64
import http.client
import ssl
from contextlib import suppress
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from grue.errors import ConfigError

LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))  # which a proxy would take to mean itself


def proxy_of(url: str) -> SplitResult | None:
    """The proxy for this address, None where it is reached directly. ConfigError for an unsupported kind."""
    parts, proxies = urlsplit(url), getproxies()
    named = proxies.get(parts.scheme) or proxies.get("all", "")
    if not named or parts.hostname in LOCAL or proxy_bypass(parts.netloc):
        return None
    with suppress(ValueError):  # for an impossible port
        proxy = urlsplit(named if "://" in named else f"http://{named}")
        if proxy.scheme == "http" and proxy.hostname and proxy.port != 0:
            return proxy
    raise ConfigError(  # the proxy's address may hold a password, so it is not repeated
        f"the proxy that the environment names for {parts.scheme}:// is of a kind that is not supported",
        hint=f"export {parts.scheme.upper()}_PROXY=http://HOST:PORT, or NO_PROXY={parts.hostname}",
    )


def connect(url: str, timeout_s: float) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
    """A connection not yet opened, and the path and headers of a request for `url` over it."""
    parts, proxy = urlsplit(url), proxy_of(url)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    host, port, headers = parts.hostname or "", parts.port, {}
    if proxy is not None:
        host, port = proxy.hostname or "", proxy.port or 80
        if proxy.username is not None:
            user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
            headers["Proxy-Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=timeout_s), path if proxy is None else url, headers
    connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=ssl.create_default_context())
    if proxy is not None:  # encrypted to the endpoint itself: the proxy sees neither key nor game
        connection.set_tunnel(parts.hostname or "", parts.port, headers)
        headers = {}
    return connection, path, headers
