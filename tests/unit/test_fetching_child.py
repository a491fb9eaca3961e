"""How the fetching child ends. The settlement thread and its socket are real; the fetcher and the stores are fakes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from psched.child.fetching_child import FetchingChild
from psched.execution.fetcher_settlement import GroupSettlementThread
from psched.execution.stop_event import StopEvent
from psched.process.dispatch_socket import ConnectionSocket


def test_the_settlement_thread_ends_before_the_stores_are_closed_even_after_an_error() -> None:
    socket, stopping = ConnectionSocket(), StopEvent()
    thread = GroupSettlementThread({}, socket, stopping)
    alive_at_close: list[bool] = []
    store = SimpleNamespace(close=lambda: alive_at_close.append(thread.is_alive()))

    def fail() -> None:
        raise RuntimeError("as told")

    child: Any = FetchingChild.__new__(FetchingChild)
    child._stopping, child._stops_now, child._settlement = stopping, False, thread
    child._fetcher = SimpleNamespace(run=fail)
    child._sections = SimpleNamespace(
        node_threads=SimpleNamespace(start=lambda: None, close=lambda waits: None),
    )
    child._opened = [SimpleNamespace(source=SimpleNamespace(store=store))]
    with pytest.raises(RuntimeError, match="as told"):
        child.run()
    socket.close()
    assert alive_at_close == [False]
