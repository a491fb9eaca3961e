"""The sockets between the fetching child and its siblings: nothing is lost, nothing blocks, and either end may die."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from psched.process.dispatch_socket import Connection, DispatchSocket

LARGE = 3_000_000
"""A size in bytes: many times as much as a socket holds."""
DESCRIPTORS = Path("/proc/self/fd")
PATIENCE = 10.0
"""Seconds until a wait for another process fails."""


def deep(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


def type_name(value: object) -> str:
    return type(value).__name__


@pytest.fixture
def pair() -> Iterator[tuple[Connection, Connection]]:
    one, other = map(Connection, socket.socketpair())
    yield one, other
    one.close()
    other.close()


@pytest.fixture
def dispatch() -> Iterator[DispatchSocket]:
    dispatch = DispatchSocket("host/node/1")
    yield dispatch
    dispatch.close()


def transfer(sender: Connection, receiver: Connection) -> list[object]:
    """Flush and receive in turn until all messages have arrived. Return them."""
    messages = [*receiver.receive()]
    while sender.has_unsent:
        sender.flush()
        messages += receiver.receive()
    return messages


def test_messages_arrive_whole_and_in_order(pair: tuple[Connection, Connection]) -> None:
    one, other = pair
    sent = [["run", "queue", [number], 1.5] for number in range(100)]
    for message in sent:
        one.send(message)
    other.send("hello")
    assert list(other.receive()) == sent
    assert list(one.receive()) == ["hello"]
    assert list(other.receive()) == []
    assert one.is_open
    assert other.is_open


@pytest.mark.parametrize(
    "value", [2**70, -(2**70), "\ud800", float("inf"), ["nested"], {"a": [1.5, None, True]}, deep(900)], ids=type_name
)
def test_whatever_json_holds_arrives(pair: tuple[Connection, Connection], value: object) -> None:
    one, other = pair
    one.send(["run", value])
    one.send(["next"])
    assert list(other.receive()) == [["run", value], ["next"]]


def test_messages_that_the_other_end_did_not_receive_are_known(pair: tuple[Connection, Connection]) -> None:
    one, other = pair
    messages = [["first"], ["large", "x" * LARGE], ["last"]]
    for message in messages:
        one.send(message)
    assert one.unsent == messages[1:]
    assert list(other.receive_last()) == messages[:1]
    one.flush()
    assert one.unsent == messages[1:]


def test_a_message_larger_than_the_socket_does_not_block_and_arrives_in_parts(
    pair: tuple[Connection, Connection],
) -> None:
    one, other = pair
    large, small = "x" * LARGE, "behind it"
    one.send(large)
    one.send(small)
    assert one.has_unsent
    assert list(other.receive()) == []
    assert transfer(one, other) == [large, small]
    assert not one.has_unsent


def test_both_ends_can_send_more_than_the_socket_holds_at_once(pair: tuple[Connection, Connection]) -> None:
    one, other = pair
    one.send("x" * LARGE)
    other.send("x" * (LARGE + 1))
    received: list[object] = []
    while one.has_unsent or other.has_unsent:
        for end in pair:
            end.flush()
            received += end.receive()
    received += [*one.receive(), *other.receive()]
    assert sorted(len(message) for message in received if isinstance(message, str)) == [LARGE, LARGE + 1]


def test_messages_that_come_byte_by_byte_are_received_when_each_is_complete(
    pair: tuple[Connection, Connection],
) -> None:
    one, other = pair
    writer, reader = socket.socketpair()
    with writer, reader:
        sender = Connection(writer)
        sender.send({"first": 1})
        sender.send("second")
        sent = reader.recv(10_000)
    received = []
    for number in range(len(sent)):
        one._socket.send(sent[number : number + 1])
        received.append(list(other.receive()))
    assert [messages for messages in received if messages] == [[{"first": 1}], ["second"]]
    assert received[-1] == ["second"]


def test_what_was_sent_before_the_end_arrives(pair: tuple[Connection, Connection]) -> None:
    one, other = pair
    one.send("last words")
    one.close()
    assert list(other.receive()) == ["last words"]
    assert list(other.receive()) == []
    assert not other.is_open


def test_after_the_end_nothing_is_sent_and_nothing_fails(pair: tuple[Connection, Connection]) -> None:
    one, other = pair
    other.close()
    one.send("to nobody")
    assert not one.is_open
    one.send("to nobody")
    one.flush()
    assert not one.has_unsent
    assert list(one.receive()) == []


def test_what_was_sent_before_the_end_arrives_though_a_send_has_noticed_the_end(
    pair: tuple[Connection, Connection],
) -> None:
    one, other = pair
    one.send("last words")
    one.close()
    other.send("to nobody")
    assert not other.is_open
    assert not other.has_ended
    assert list(other.receive_last()) == ["last words"]
    assert other.has_ended


def test_an_end_that_is_gone_is_noticed_when_receiving(pair: tuple[Connection, Connection]) -> None:
    one, other = pair
    assert list(one.receive()) == []
    assert one.is_open
    other.close()
    assert list(one.receive()) == []
    assert not one.is_open


def test_half_a_message_of_a_killed_process_is_dropped_and_those_before_it_arrive(dispatch: DispatchSocket) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            connection = dispatch.connect("worker")
            connection.send("whole")
            connection.send("x" * LARGE)
            signal.pause()
        finally:
            os._exit(1)
    connections: list[tuple[str, Connection]] = []
    while not connections:
        connections += dispatch.accept()
    ((name, connection),) = connections
    assert name == "worker"
    messages: list[object] = []
    while not messages:
        messages += connection.receive()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while connection.is_open:
        messages += connection.receive()
    assert messages == ["whole"]


def test_connections_are_taken_in_order_with_the_names_of_their_children(dispatch: DispatchSocket) -> None:
    assert list(dispatch.accept()) == []
    mine = {name: dispatch.connect(name) for name in ("host/w1/1", "host/w2/2", "x" * 255)}
    for name, connection in mine.items():
        connection.send(("hello", name))
    taken = list(dispatch.accept())
    assert [name for name, _ in taken] == list(mine)
    for name, connection in taken:
        assert list(connection.receive()) == [["hello", name]]
        connection.send(("run", name))
        assert list(mine[name].receive()) == [["run", name]]
        connection.close()
        assert list(mine[name].receive()) == []
        assert not mine[name].is_open


def test_the_next_fetching_child_takes_the_connections_that_the_dead_one_has_not(dispatch: DispatchSocket) -> None:
    taken_by_the_first = dispatch.connect("host/w1/1")
    pid = os.fork()
    if pid == 0:
        try:
            connections: list[tuple[str, Connection]] = []
            while not connections:
                connections += dispatch.accept()
            connections[0][1].send("I have it")
            signal.pause()
        finally:
            os._exit(1)
    messages: list[object] = []
    while not messages:
        messages += taken_by_the_first.receive()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    waiting = dispatch.connect("host/w2/2")
    waiting.send("hello of 2")
    assert list(taken_by_the_first.receive()) == []
    assert not taken_by_the_first.is_open
    again = dispatch.connect("host/w1/1")
    again.send("hello of 1")
    taken = list(dispatch.accept())
    assert [(name, list(connection.receive())) for name, connection in taken] == [
        ("host/w2/2", ["hello of 2"]),
        ("host/w1/1", ["hello of 1"]),
    ]
    for connection in (waiting, again, *(connection for _, connection in taken)):
        connection.close()


def test_a_child_that_finds_no_room_for_its_connection_is_refused_and_keeps_no_descriptor(
    dispatch: DispatchSocket,
) -> None:
    connections: list[Connection] = []
    with suppress(OSError):
        while True:
            connections.append(dispatch.connect("worker"))
    before = set(DESCRIPTORS.iterdir())
    with pytest.raises(BlockingIOError):
        dispatch.connect("worker")
    assert set(DESCRIPTORS.iterdir()) == before
    taken = [connection for _, connection in dispatch.accept()]
    assert len(taken) == len(connections)
    for connection in (*taken, *connections):
        connection.close()
    dispatch.connect("worker").close()


def test_descriptors_wake_a_wait_for_connections_and_messages(dispatch: DispatchSocket) -> None:
    def is_readable(number: int) -> bool:
        return bool(select.select([number], [], [], 0)[0])

    assert not is_readable(dispatch.fileno())
    mine = dispatch.connect("worker")
    assert is_readable(dispatch.fileno())
    ((_, other),) = dispatch.accept()
    assert not is_readable(dispatch.fileno())
    assert not is_readable(other.fileno())
    mine.send("hello")
    assert is_readable(other.fileno())
    mine.close()
    other.close()


def test_an_end_that_takes_its_last_messages_gets_all_that_the_other_has_sent(
    pair: tuple[Connection, Connection],
) -> None:
    one, other = pair
    one.send("first")
    last = other.receive_last()
    assert next(last) == "first"
    one.send("too late")
    assert not one.is_open, "the sender knows that this message does not arrive"
    assert list(last) == []
    assert not other.is_open


def test_a_connection_has_ended_when_the_other_end_is_gone_and_nothing_is_left(
    pair: tuple[Connection, Connection],
) -> None:
    one, other = pair
    assert not other.has_ended
    one.send("message")
    one.close()
    assert not other.has_ended
    assert list(other.receive()) == ["message"]
    assert other.has_ended
    assert other.is_open, "the owner closes it"
    other.close()
    assert other.has_ended


def test_a_process_that_a_handler_forked_does_not_keep_connections_open(pair: tuple[Connection, Connection]) -> None:
    one, other = pair
    pid = os.fork()
    if pid == 0:
        try:
            signal.pause()
        finally:
            os._exit(1)
    try:
        one.send("the parent's copy is open")
        assert list(other.receive()) == ["the parent's copy is open"]
        one.close()
        select.select([other.fileno()], [], [], PATIENCE)
        assert list(other.receive()) == []
        assert not other.is_open
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_descriptor_that_a_handler_closed_and_used_again_is_left_alone(pair: tuple[Connection, Connection]) -> None:
    one, other = pair
    number = other.fileno()
    os.close(number)
    theirs, far = socket.socketpair()
    with theirs, far:
        assert theirs.fileno() == number
        far.send(b"not ours")
        other.send("not theirs")
        assert list(other.receive()) == []
        assert not other.is_open
        other.close()
        assert theirs.recv(100) == b"not ours"
        far.setblocking(False)
        with pytest.raises(BlockingIOError):
            far.recv(100)
    one.close()


def test_no_connection_is_sent_over_a_socket_that_a_handler_has_opened_in_place_of_ours(
    dispatch: DispatchSocket,
) -> None:
    """The handler has closed all descriptors."""
    ours = dispatch._sender.fileno()
    kept = os.dup(ours)
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with mine, other:
        other.setblocking(False)
        os.dup2(mine.fileno(), ours)
        with pytest.raises(OSError, match="a handler has closed"):
            dispatch.connect("w1")
        with pytest.raises(BlockingIOError):
            other.recv(1)
    os.dup2(kept, ours)
    os.close(kept)
