"""Processes that are forked while another thread of their parent polls the queue."""

from __future__ import annotations

import pytest

from psched.store import TaskStore
from tests.stores.fork_during_poll import FORKS, keys_got
from tests.stores.queue.bench import QueueBench


@pytest.mark.in_suite_on("rdb", "redis")
@pytest.mark.parametrize("temperature", ["warm", "cold"])
def test_a_process_forked_off_amid_a_poll_of_another_thread_polls(
    bench: QueueBench, store: TaskStore, temperature: str
) -> None:
    """Cold: the poll has not connected yet when the process is forked."""
    keys = [f"key{number}" for number in range(FORKS + 1)]
    bench.submit(store, keys)
    assert sorted(str(key) for key in keys_got(bench, "queue", temperature)) == keys
