"""What the proxy does to connections, as a real client of a small server sees it."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from faultlab.ports import HOST
from faultlab.proxy import Proxy
from faultlab.servers import Server
from faultlab.sql import connect


class _Echo(socketserver.StreamRequestHandler):
    """Answers each line with the same line, and records it."""

    def handle(self) -> None:
        try:
            for line in self.rfile:
                self.server.lines.append(line)  # type: ignore[attr-defined]
                self.wfile.write(line)
        except OSError:
            return  # the connection was cut


class _EchoServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__((HOST, 0), _Echo)
        self.lines: list[bytes] = []


@pytest.fixture
def echo() -> Iterator[_EchoServer]:
    with _EchoServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: _EchoServer) -> Iterator[Proxy]:
    with Proxy(echo.server_address[1]) as proxy:
        yield proxy


class _Client:
    def __init__(self, proxy: Proxy) -> None:
        self.socket = socket.create_connection((HOST, proxy.port), timeout=5)

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def say(self, line: bytes) -> None:
        self.socket.sendall(line + b"\n")

    def ask(self, line: bytes) -> bytes:
        self.say(line)
        return self.socket.recv(100).rstrip(b"\n")


@pytest.fixture
def client(proxy: Proxy) -> Iterator[_Client]:
    with _Client(proxy) as client:
        assert client.ask(b"hello") == b"hello"
        yield client


def test_a_cut_resets_connections_and_serves_new_ones(proxy: Proxy, client: _Client) -> None:
    proxy.cut()
    with pytest.raises(ConnectionError):
        assert client.socket.recv(1)
    with _Client(proxy) as again:
        assert again.ask(b"again") == b"again"


def test_refusing_turns_new_clients_away_and_keeps_the_old(proxy: Proxy, client: _Client) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        _Client(proxy)
    assert client.ask(b"still") == b"still"
    proxy.pass_on()
    with _Client(proxy) as again:
        assert again.ask(b"again") == b"again"


def test_a_black_hole_forwards_nothing_until_it_is_healed(proxy: Proxy, client: _Client, echo: _EchoServer) -> None:
    proxy.black_hole()
    client.say(b"lost in space")
    client.socket.settimeout(0.2)
    with _Client(proxy) as connected:
        connected.say(b"me too")
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
    assert echo.lines == [b"hello\n"]
    client.socket.settimeout(5)
    proxy.pass_on()
    assert client.socket.recv(100) == b"lost in space\n"


def test_a_delay_holds_up_each_request(proxy: Proxy, client: _Client) -> None:
    proxy.delay(0.2)
    start = time.monotonic()
    assert client.ask(b"late") == b"late"
    assert time.monotonic() - start >= 0.2


def test_a_forgotten_trap_never_springs(proxy: Proxy, client: _Client) -> None:
    trap = proxy.lose_request(b"UPDATE")
    proxy.forget_traps()
    assert client.ask(b"UPDATE") == b"UPDATE"
    assert not trap.sprung


def test_a_lost_request_never_reaches_the_server(proxy: Proxy, client: _Client, echo: _EchoServer) -> None:
    trap = proxy.lose_request(b"UPDATE")
    assert client.ask(b"SELECT") == b"SELECT"
    assert not trap.sprung
    client.say(b"UPDATE")
    with pytest.raises(ConnectionError):
        assert client.socket.recv(1)
    trap.wait()
    assert echo.lines == [b"hello\n", b"SELECT\n"]


def test_a_lost_answer_is_lost_after_the_server_has_given_it(proxy: Proxy, client: _Client, echo: _EchoServer) -> None:
    trap = proxy.lose_answer(b"COMMIT")
    client.say(b"COMMIT")
    with pytest.raises(ConnectionError):
        assert client.socket.recv(1)
    trap.wait()
    assert echo.lines[-1] == b"COMMIT\n"


def test_a_trap_finds_bytes_that_come_in_two_pieces_and_springs_once(proxy: Proxy, client: _Client) -> None:
    proxy.hold(b"finish").release()
    client.socket.sendall(b"fin")
    assert client.ask(b"ish") == b"finish"
    trap = proxy.hold(b"finish")
    client.say(b"finish")
    trap.wait()
    with _Client(proxy) as other:
        assert other.ask(b"finish") == b"finish"
    trap.release()
    assert client.socket.recv(100) == b"finish\n"


def test_a_trap_is_not_sprung_by_what_went_by_before_it_was_set(proxy: Proxy, client: _Client) -> None:
    assert client.ask(b"a word") == b"a word"
    trap = proxy.lose_request(b"word")
    assert client.ask(b"another") == b"another"
    assert not trap.sprung
    with pytest.raises(ConnectionResetError):
        client.ask(b"the word again")
    assert trap.sprung


def test_a_client_that_resets_its_connection_has_no_effect(proxy: Proxy, client: _Client) -> None:
    trap = proxy.hold(b"held")
    client.say(b"held")
    trap.wait()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
    trap.release()
    with _Client(proxy) as other:
        assert other.ask(b"alive") == b"alive"


def test_when_the_server_is_gone_clients_are_cut(proxy: Proxy, echo: _EchoServer) -> None:
    echo.socket.shutdown(socket.SHUT_RDWR)  # closing alone leaves it listening for as long as a thread waits on it
    with pytest.raises(ConnectionError), _Client(proxy) as client:  # it may be cut before it knows of its connection
        assert client.socket.recv(1)


def test_a_commit_whose_answer_is_lost_was_done(server: Server) -> None:
    name = server.create_database()
    try:
        with Proxy(server.port) as proxy:
            trap = proxy.lose_answer(b"INSERT")
            with connect(server.url(name, proxy.port)) as connection:
                connection.execute(sa.text("CREATE TABLE t (n INTEGER)"))
                with pytest.raises(sa.exc.OperationalError):
                    connection.execute(sa.text("INSERT INTO t VALUES (1)"))
            trap.wait()
        with connect(server.url(name)) as connection:
            assert connection.scalar(sa.text("SELECT n FROM t")) == 1
    finally:
        server.drop_database(name)
