"""One thread of a process asks for all awaited tasks. It ends when no caller waits, and does not outlive a fork."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import pytest

from psched.model import TaskOutcome
from psched.queue import result_poller
from psched.queue.result_poller import ResultPoller

FINISHED = TaskOutcome("finished", "type", None, "1")
RUNNING = TaskOutcome("running", "type")


class Tasks:
    """The methods of a store of tasks that the poller calls."""

    def __init__(self) -> None:
        self.found: dict[str, TaskOutcome] = {}
        self.asked: list[Sequence[str]] = []

    def outcomes(self, keys: Sequence[str]) -> Mapping[str, TaskOutcome]:
        self.asked.append(keys)
        return {key: self.found[key] for key in keys if key in self.found}


@pytest.fixture
def tasks() -> Tasks:
    return Tasks()


@pytest.fixture
def poller(tasks: Tasks) -> Iterator[ResultPoller]:
    poller = ResultPoller(tasks.outcomes)
    yield poller
    poller.close()
    wait_until_no_thread(poller)


def wait_until_no_thread(poller: ResultPoller) -> None:
    end = time.monotonic() + 30
    while poller._thread is not None or any(each.name == "psched results" for each in threading.enumerate()):
        assert time.monotonic() < end, "the thread has not ended"
        time.sleep(0.01)


def test_a_task_that_does_not_exist_has_no_outcome(poller: ResultPoller) -> None:
    assert poller.wait_for("key", None).result(30) is None


def test_callers_that_wait_for_the_same_task_share_one_look(poller: ResultPoller, tasks: Tasks) -> None:
    tasks.found["key"] = FINISHED
    with poller._changed:  # so that the thread looks when all are there
        answers = [poller.wait_for("key", None) for _ in range(5)]
    assert [answer.result(30) for answer in answers] == [FINISHED] * 5
    assert tasks.asked == [["key"]]


def test_thousands_of_tasks_are_asked_for_in_parts(poller: ResultPoller, tasks: Tasks) -> None:
    tasks.found = {f"key{n}": FINISHED for n in range(1201)}
    with poller._changed:
        answers = [poller.wait_for(key, None) for key in tasks.found]
    assert {answer.result(30) for answer in answers} == {FINISHED}
    assert [len(keys) for keys in tasks.asked] == [500, 500, 201]


def test_without_time_to_wait_a_task_is_looked_at_once(poller: ResultPoller, tasks: Tasks) -> None:
    tasks.found["key"] = RUNNING
    assert poller.wait_for("key", 0).result(30) == RUNNING
    assert tasks.asked == [["key"]]


def test_the_thread_ends_when_nobody_waits_and_the_next_caller_starts_another(
    poller: ResultPoller, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_poller, "_IDLE", 0.01)
    for _ in range(3):
        assert poller.wait_for("key", None).result(30) is None
        wait_until_no_thread(poller)


def test_a_forked_process_waits_with_a_thread_of_its_own(poller: ResultPoller, tasks: Tasks) -> None:
    tasks.found["key"] = RUNNING
    ours = poller.wait_for("key", None)
    child = os.fork()
    if child == 0:
        tasks.found["key"] = FINISHED
        os._exit(0 if poller.wait_for("key", None).result(30) == FINISHED and not ours.done() else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    tasks.found["key"] = FINISHED
    assert ours.result(30) == FINISHED
