"""Requests keep their order and are retried.

The queue is bounded, callers never wait, and a stop sends what is left.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from psched.execution import http_request_queue
from psched.execution.http_request_queue import RequestQueue
from psched.http_client import Request, RequestError, post
from tests.unit.http_receiver import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.mark.parametrize(
    ("status", "is_final"), [(302, True), (400, True), (404, True), (408, False), (429, False), (500, False)]
)
def test_an_error_says_whether_a_retry_is_worth_it(receiver: Receiver, status: int, is_final: bool) -> None:
    receiver.statuses.append(status)
    with pytest.raises(RequestError, match=f"HTTP {status}") as raised:
        post(Request(f"{receiver.url}/secret"))
    assert raised.value.is_final is is_final
    assert len(receiver.got) == 1
    assert "secret" not in str(raised.value)


def test_a_refused_connection_and_a_silent_receiver_are_request_errors(receiver: Receiver) -> None:
    with pytest.raises(RequestError, match="refused"):
        post(Request("http://127.0.0.1:1/"))
    receiver.hold.clear()
    with pytest.raises(RequestError, match="timed out"):
        post(Request(receiver.url, timeout=0.05))
    receiver.hold.set()


def test_requests_keep_their_order_and_are_retried(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_request_queue, "PAUSES", (0.0, 0.0))
    receiver.statuses += [500, 503]
    queue = RequestQueue("test")
    for path in ("/1", "/2"):
        queue.put(Request(receiver.url + path, b"body"))
    receiver.wait_for(4)
    queue.close(20)
    assert [got.path for got in receiver.got] == ["/1", "/1", "/1", "/2"]
    assert receiver.got[0].body == b"body"


def test_a_final_error_is_not_retried_and_logged_without_the_url(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.statuses.append(404)
    queue = RequestQueue("test")
    queue.put(Request(f"{receiver.url}/secret"))
    queue.put(Request(f"{receiver.url}/next"))
    with caplog.at_level(logging.WARNING):
        queue.close(20)
    assert [got.path for got in receiver.got] == ["/secret", "/next"]
    assert "test: 1 request was not delivered: 127.0.0.1: HTTP 404" in caplog.text
    assert "secret" not in caplog.text


def test_a_full_queue_drops_the_oldest_requests(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.hold.clear()
    queue = RequestQueue("test", capacity=2)
    queue.put(Request(f"{receiver.url}/0"))
    receiver.wait_for(1)
    with caplog.at_level(logging.WARNING):
        for number in range(1, 5):
            queue.put(Request(f"{receiver.url}/{number}"))
    receiver.hold.set()
    queue.close(20)
    assert [got.path for got in receiver.got] == ["/0", "/3", "/4"]
    assert "more than 2 requests wait" in caplog.text


def test_closing_gives_up_after_its_bound(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.hold.clear()
    queue = RequestQueue("test")
    for number in range(3):
        queue.put(Request(f"{receiver.url}/{number}", timeout=30))
    receiver.wait_for(1)
    with caplog.at_level(logging.WARNING):
        queue.close(0.01)
    assert "test: 3 requests were not sent before the stop" in caplog.text
    receiver.hold.set()


def test_closing_cuts_the_pause_before_a_retry_short(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_request_queue, "PAUSES", (3600.0,))
    receiver.statuses.append(500)
    queue = RequestQueue("test")
    queue.put(Request(f"{receiver.url}/"))
    receiver.wait_for(1)
    queue.close(20)
    assert len(receiver.got) == 2


def test_an_unused_queue_has_no_thread() -> None:
    before = threading.active_count()
    RequestQueue("test").close(1)
    assert threading.active_count() == before
