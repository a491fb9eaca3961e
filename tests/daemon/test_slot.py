"""The waits after a worker cannot start become longer and longer. The children and the clock are fakes."""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from psched.process.child_protocol import APPLIED, BOOT_FAILED, DONE, EMPTY, RAN, READY, START_ERROR, open_pipes
from psched.process.child_spec import FETCHER_SLOT
from psched.process.dead_child import DeadChild
from psched.supervisor.lease_recovery import LeaseRecovery
from psched.supervisor.slot import Slot
from tests.daemon.fake_children import FakeChild, FakeProcessTable, fake_process_table, sqlite_config
from tests.few_descriptors import few_descriptors

SHORTEST, LONGEST, SPREAD = 0.5, 60.0, 1.25
FETCHER_LIMIT = 5.0
REASON = "no such table: psched_queue"


class TickedSlot:
    """A slot with a clock that the test advances."""

    def __init__(self, folder: Path, process_table: FakeProcessTable, limit: float = 0.1, number: int = 2) -> None:
        config = sqlite_config(folder, child_fork_frequency_limit=limit)
        self.lease_recovery = LeaseRecovery(process_table)
        self.slot = Slot(number, config, None, tuple, process_table, self.lease_recovery, lambda _: False)
        self.process_table = process_table

    def tick(self, later: float = 0.0) -> None:
        """Let `later` seconds pass, and tick the slot."""
        self.process_table.now += later
        self.process_table.tick(self.process_table.now)
        self.slot.tick(self.process_table.now)

    def fail_to_start(self, reason: str = REASON) -> float:
        """Fork a child that cannot start. Return the seconds from its end to the next fork."""
        count = len(self.process_table.forked)
        self.tick(max(0.0, self.slot.deadline - self.process_table.now))
        assert len(self.process_table.forked) == count + 1
        child = self.process_table.forked[-1]
        child.child_pipe.send(START_ERROR, reason)
        child.child_pipe.send(EMPTY)
        child.leave(BOOT_FAILED)
        self.tick(0.1)
        return self.slot.deadline - self.process_table.now

    def crash(self, *messages: str, running: str = "") -> float:
        """Fork a child that becomes ready, sends `messages` and crashes. Return the seconds until the next fork.

        `running`: the task that the child is running when it crashes.
        """
        child = self.next_child()
        for message in (READY, *messages):
            child.child_pipe.send(message)
        self.tick()
        if running:
            assert child.spec is not None
            child.spec.running_table.running(0, running)
        return self.end(child, signal.SIGSEGV)

    def next_child(self) -> FakeChild:
        """Return the slot's child. If there is none, let the time pass until one is forked."""
        if self.slot._child is None:
            self.tick(max(0.0, self.slot.deadline - self.process_table.now))
        return self.process_table.forked[-1]

    def end(self, child: FakeChild, number: signal.Signals) -> float:
        """End the child by a signal. Return the seconds until the next fork."""
        child.leave(-number)
        self.tick()
        return 0.0 if self.slot._child is not None else self.slot.deadline - self.process_table.now


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[TickedSlot]:
    with fake_process_table() as process_table:
        yield TickedSlot(tmp_path, process_table)


@pytest.fixture
def slow_slot(tmp_path: Path) -> Iterator[TickedSlot]:
    """A slot that waits a minute before the next fork after a child has died without running a task."""
    with fake_process_table() as process_table:
        yield TickedSlot(tmp_path, process_table, LONGEST)


@pytest.fixture
def fetcher_slot(tmp_path: Path) -> Iterator[TickedSlot]:
    """The slot of the fetching child. The slots of the handler children wait for this child."""
    with fake_process_table() as process_table:
        yield TickedSlot(tmp_path, process_table, FETCHER_LIMIT, FETCHER_SLOT)


def _descriptors() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/fd").iterdir()}


def is_about(pause: float, expected: float) -> bool:
    return expected - 1e-6 <= pause <= expected * SPREAD + 1e-6


def test_each_failed_start_in_a_row_waits_longer_up_to_a_minute(slot: TickedSlot) -> None:
    pauses = [slot.fail_to_start() for _ in range(10)]
    expected = [min(SHORTEST * 2**number, LONGEST) for number in range(10)]
    assert all(map(is_about, pauses, expected)), pauses


def test_failures_at_the_start_are_forgotten_when_a_child_is_ready(
    slot: TickedSlot, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        slot.fail_to_start()
    slot.crash()
    assert "is up after 3 failed attempts" in caplog.text
    assert slot.slot.trouble is None


def test_the_reason_of_failed_starts_is_logged_once(slot: TickedSlot, caplog: pytest.LogCaptureFixture) -> None:
    for reason in (REASON, REASON, "access denied", "access denied", REASON):
        slot.fail_to_start(reason)
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [line.partition(";")[0] for line in logged] == [
        f"worker 2 cannot start: {reason}" for reason in (REASON, "access denied", REASON)
    ]


def test_a_child_that_has_given_back_all_its_leases_needs_no_recovery(slot: TickedSlot) -> None:
    slot.fail_to_start()
    assert slot.lease_recovery.done


def test_only_the_first_child_that_dies_before_it_has_run_a_task_is_replaced_at_once(
    slow_slot: TickedSlot,
) -> None:
    assert [slow_slot.crash() for _ in range(3)] == [0.0, LONGEST, LONGEST]


def test_a_fetching_child_that_dies_early_again_and_again_waits_longer_each_time(fetcher_slot: TickedSlot) -> None:
    pauses = [fetcher_slot.crash() for _ in range(9)]
    assert pauses == pytest.approx([0.0, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0])
    fetcher_slot.slot._early_deaths = 2000
    assert fetcher_slot.crash() == pytest.approx(2.0)
    frozen = fetcher_slot.next_child()
    fetcher_slot.tick(FETCHER_LIMIT)
    assert frozen.was_frozen
    assert [fetcher_slot.crash() for _ in range(3)] == pytest.approx([0.0, 0.2, 0.4]), "the frozen one had lived long"


def test_a_fetching_child_that_has_lived_for_a_second_is_replaced_at_once(fetcher_slot: TickedSlot) -> None:
    for _ in range(5):
        fetcher_slot.next_child()
        fetcher_slot.tick(1.1)
        assert fetcher_slot.crash() == 0.0


@pytest.mark.parametrize("number", [2, FETCHER_SLOT])
def test_a_child_that_is_killed_during_its_start_is_replaced_like_any_other(tmp_path: Path, number: int) -> None:
    with fake_process_table() as process_table:
        slot = TickedSlot(tmp_path, process_table, LONGEST, number)
        slot.next_child().child_pipe.send(READY)
        slot.tick(LONGEST)
        assert slot.end(slot.next_child(), signal.SIGKILL) == 0.0
        assert slot.end(slot.next_child(), signal.SIGKILL) == 0.0
        assert slot.end(slot.next_child(), signal.SIGKILL) == pytest.approx(0.2 if number == FETCHER_SLOT else LONGEST)
        assert slot.slot.trouble is None


def test_a_child_that_is_killed_before_the_first_was_ready_counts_as_a_failed_start(slot: TickedSlot) -> None:
    assert is_about(slot.end(slot.next_child(), signal.SIGKILL), SHORTEST)
    assert slot.slot.trouble == "worker 2 cannot start: was killed by SIGKILL before it was ready"


def test_children_that_die_of_their_tasks_are_replaced_after_a_short_pause(
    slow_slot: TickedSlot,
) -> None:
    pauses = [slow_slot.crash(running="schedules:a") for _ in range(5)]
    assert pauses == pytest.approx([0.2] * 5)
    assert slow_slot.crash(RAN) == pytest.approx(0.2), "it had run something"
    assert [slow_slot.crash() for _ in range(2)] == [0.0, LONGEST]


def test_a_child_applies_the_schedules_until_one_has_done_so_since_the_last_reload(slot: TickedSlot) -> None:
    slot.crash()
    slot.crash(APPLIED)
    slot.crash()
    slot.tick(LONGEST)
    stopped = slot.process_table.forked[-1]
    slot.slot.replace(slot.slot.config, None, False, slot.process_table.now)
    stopped.child_pipe.send(APPLIED)  # the schedules of the previous configuration
    slot.tick()
    stopped.leave(DONE)
    for _ in range(2):
        slot.tick()
    specs = [child.spec for child in slot.process_table.forked]
    assert [spec is not None and spec.applies_schedules for spec in specs] == [True, True, False, False, True]


def test_a_slot_reports_when_it_forks_next_and_how_the_last_child_ended(slow_slot: TickedSlot) -> None:
    first = slow_slot.slot.pending
    assert first is not None
    assert first.text(slow_slot.process_table.now) == "worker 2 is being started"
    slow_slot.crash()
    slow_slot.tick()
    booting = slow_slot.slot.pending
    assert booting is not None
    expected = "worker 2 is being restarted; the previous one was killed by SIGSEGV"
    assert booting.text(slow_slot.process_table.now) == expected
    slow_slot.crash()
    waiting = slow_slot.slot.pending
    assert waiting is not None
    expected = "worker 2 is being restarted (in 59.2 s); the previous one was killed by SIGSEGV"
    assert waiting.text(slow_slot.process_table.now + 0.8) == expected
    slow_slot.tick(LONGEST)
    slow_slot.process_table.forked[-1].child_pipe.send(READY)
    slow_slot.tick()
    assert slow_slot.slot.pending is None


@pytest.mark.parametrize("missing", ["RunningTable", "FakeProcessTable.fork"])
def test_a_fork_without_memory_is_tried_again_and_forgets_no_dead_child(
    slot: TickedSlot, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    dead = DeadChild("host/1/w9")
    slot.lease_recovery.add([dead])
    module = "psched.supervisor.slot" if missing == "RunningTable" else "tests.daemon.fake_children"
    with monkeypatch.context() as patch:
        patch.setattr(f"{module}.{missing}", fail)
        slot.tick()
    assert slot.process_table.forked == []
    assert slot.slot.trouble == "worker 2 cannot start: cannot fork: Cannot allocate memory"
    slot.tick(max(0.0, slot.slot.deadline - slot.process_table.now))
    (child,) = slot.process_table.forked
    assert child.spec is not None
    assert child.spec.dead == (dead,)


def test_pipes_that_cannot_be_opened_leave_no_descriptor_open() -> None:
    with few_descriptors(3):  # of the four that are needed
        before = _descriptors()
        with pytest.raises(OSError, match="Too many open files"):
            open_pipes()
        assert _descriptors() == before
