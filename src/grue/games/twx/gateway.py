"""A py4j connection that fails fast and silently. Imported only when Java is started.

The stock client sends a command again when the answer was empty, and prints a traceback on the root
logger. A game step must never be done twice, and what to do about a dead Java is decided in `seat.py`.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

from py4j.java_gateway import GatewayClient, GatewayConnection, GatewayParameters, JavaGateway, JavaObject
from py4j.protocol import get_command_part, get_return_value, smart_decode


class _PromptSocket(socket.socket):
    """Acknowledges what arrives at once.

    Java sends an answer of more than 8 KB in two parts, the second once the first has been acknowledged, for which
    Linux otherwise takes 40 ms.
    """

    __slots__ = ()

    def sendall(self, *arguments: Any) -> None:
        super().sendall(*arguments)
        if hasattr(socket, "TCP_QUICKACK"):  # holds for the next answer only
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


class _Client(GatewayClient):  # type: ignore[misc]
    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        """One attempt on a connection that no other thread uses; a connection that failed is closed."""
        if binary:
            return super().send_command(command, retry, binary)
        connection = self._get_connection()
        try:
            answer = connection.send_command(command)
        except BaseException:
            connection.close(True)
            raise
        self._give_back_connection(connection)
        return answer

    def begin(self, command: str) -> Pending:
        """Send `command` and return at once."""
        connection = self._get_connection()
        try:
            connection.socket.sendall(command.encode())
        except BaseException:
            connection.close(True)
            raise
        return Pending(self, connection)

    def _create_connection(self) -> GatewayConnection:
        connection = GatewayConnection(self.gateway_parameters, self.gateway_property)
        try:
            connection.start()
        except BaseException:
            if getattr(connection, "stream", None) is not None:
                connection.stream.close()  # otherwise a socket that looks closed would stay open
            connection.socket.close()
            raise
        connection.socket.__class__ = _PromptSocket
        return connection

    def abandon(self) -> None:
        """Close this process's copies of the connections without a word to the other side."""
        while self.deque:
            connection = self.deque.pop()  # held until its socket is detached: its finalizer would shut that down
            with suppress(OSError):
                os.close(connection.socket.detach())


class Pending:
    """A call whose answer has not been read. To be finished or dropped."""

    def __init__(self, client: _Client, connection: GatewayConnection) -> None:
        self._client, self._connection = client, connection

    def finish(self) -> Any:
        """The answer, as py4j gives it. A connection that fails is closed."""
        try:
            answer = smart_decode(self._connection.stream.readline()[:-1])
            if not answer:
                raise OSError("Java closed the connection")
        except BaseException:
            self.drop()
            raise
        self._client._give_back_connection(self._connection)
        return get_return_value(answer.removeprefix("!"), self._client)  # py4j marks an answer with "!"

    def drop(self) -> None:
        """Never read the answer."""
        self._connection.close(True)


class Gateway(JavaGateway):  # type: ignore[misc]
    """A JavaGateway with our client."""

    def __init__(self, port: int, token: str, read_timeout_s: float) -> None:
        # Without memory management Python's garbage collector never talks to Java: it could block on a hung
        # process, or free the parent's objects from a forked child. Objects are released by hand.
        parameters = GatewayParameters(
            port=port,
            auth_token=token,
            read_timeout=read_timeout_s,
            auto_field=False,
            auto_convert=False,
            enable_memory_management=False,
        )
        super().__init__(gateway_parameters=parameters)

    def _create_gateway_client(self) -> _Client:
        return _Client(gateway_parameters=self.gateway_parameters)

    def begin(self, target: JavaObject, method: str, *arguments: str | int) -> Pending:
        """Start target.method(*arguments), which Java runs while Python does something else."""
        parts = "".join(get_command_part(argument) for argument in arguments)
        command = f"c\n{target._target_id}\n{method}\n{parts}e\n"  # py4j's form of a call
        return self._gateway_client.begin(command)  # type: ignore[no-any-return]

    def abandon(self) -> None:
        """For a forked child: forget the parent's connections, which stay open for the parent."""
        self._gateway_client.abandon()
