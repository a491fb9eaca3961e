"""A worker that cannot begin is tried again less and less often. Children on paper, a clock of our own."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from psched.process import channel as pipes
from psched.process.channel import BOOT_FAILED
from psched.process.logs import Log
from psched.supervisor.lease_recovery import DeadChildren
from psched.supervisor.slot import Slot
from tests.daemon.fake_children import PaperNursery, paper_nursery, plan_of

SHORTEST, LONGEST, SPREAD = 0.5, 60.0, 1.25
REASON = "no such table: psched_queue"


class TickedSlot:
    """A slot that is ticked whenever it wants to be."""

    def __init__(self, folder: Path, process_table: PaperNursery, limit: float = 0.1) -> None:
        plan = plan_of(folder, child_fork_frequency_limit=limit)
        self.dead_children = DeadChildren()
        self.slot = Slot(2, plan, None, process_table, self.dead_children, Log(None), lambda _: False)
        self.process_table = process_table

    def tick(self, later: float = 0.0) -> None:
        """Let time pass, and tick."""
        self.process_table.now += later
        self.process_table.tick(self.process_table.now)
        self.slot.tick(self.process_table.now)

    def refuse(self, ready: bool, reason: str = REASON, after: float = 0.1) -> float:
        """Let the next child be born and refuse to begin `after` it was; return the seconds until the one after it.

        `ready`: it is a reserve, which has stood by until it was called.
        """
        count = len(self.process_table.born)
        self.tick(max(0.0, self.slot.deadline - self.process_table.now))
        assert len(self.process_table.born) == count + 1
        child = self.process_table.born[-1]
        if ready:
            child.reporter.say(pipes.READY)
            self.tick()
        child.reporter.say(pipes.WHY, reason)
        child.reporter.say(pipes.EMPTY)
        child.leave(BOOT_FAILED)
        self.tick(after)
        return self.slot.deadline - self.process_table.now

    def crash(self, *words: str, running: str = "") -> float:
        """Let the next child be born, be ready, say `words` and die running that; return the seconds to the next."""
        if self.slot._child is None:
            self.tick(max(0.0, self.slot.deadline - self.process_table.now))
        child = self.process_table.born[-1]
        for word in (pipes.READY, *words):
            child.reporter.say(word)
        self.tick()
        if running:
            assert self.slot._boot is not None
            self.slot._boot.running_table.running(0, running)
        child.leave(-signal.SIGSEGV)
        self.tick()
        return 0.0 if self.slot._child is not None else self.slot.deadline - self.process_table.now


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[TickedSlot]:
    with paper_nursery() as process_table:
        yield TickedSlot(tmp_path, process_table)


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[TickedSlot]:
    """A slot that forks no more often than each minute what dies before it has run anything."""
    with paper_nursery() as process_table:
        yield TickedSlot(tmp_path, process_table, LONGEST)


def is_about(pause: float, expected: float) -> bool:
    return expected - 1e-6 <= pause <= expected * SPREAD + 1e-6


@pytest.mark.parametrize("ready", [False, True], ids=["at its boot", "when it was called"])
def test_each_refusal_in_a_row_waits_longer_up_to_a_minute(slot: TickedSlot, ready: bool) -> None:
    pauses = [slot.refuse(ready) for _ in range(10)]
    expected = [min(SHORTEST * 2**number, LONGEST) for number in range(10)]
    assert all(map(is_about, pauses, expected)), pauses


def test_a_reserve_that_was_refused_is_trusted_again_when_the_next_one_has_stood_by_for_long(slot: TickedSlot) -> None:
    for _ in range(4):
        slot.refuse(ready=True)
    assert is_about(slot.refuse(ready=True, after=LONGEST - 1), SHORTEST * 16)
    slot.tick(slot.slot.deadline - slot.process_table.now)
    slot.process_table.born[-1].reporter.say(pipes.READY)
    slot.tick(LONGEST)
    slot.process_table.born[-1].reporter.say(pipes.WHY, REASON)
    slot.process_table.born[-1].leave(BOOT_FAILED)
    slot.tick()
    assert is_about(slot.slot.deadline - slot.process_table.now, SHORTEST)


def test_one_that_begins_after_refusals_at_boot_is_trusted_at_once(
    slot: TickedSlot, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        slot.refuse(ready=False)
    assert is_about(slot.refuse(ready=True), SHORTEST)
    assert "is up after 3 failed attempts" in caplog.text


def test_the_reason_of_refusals_is_told_once(slot: TickedSlot, caplog: pytest.LogCaptureFixture) -> None:
    for reason in (REASON, REASON, "access denied", "access denied", REASON):
        slot.refuse(ready=True, reason=reason)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [line.partition(";")[0] for line in told] == [
        f"worker 2 cannot begin: {reason}" for reason in (REASON, "access denied", REASON)
    ]


def test_who_has_given_back_all_that_it_held_leaves_no_estate(slot: TickedSlot) -> None:
    slot.refuse(ready=True)
    assert slot.dead_children.empty


def test_children_that_die_before_they_have_run_anything_are_replaced_at_once_but_once(patient: TickedSlot) -> None:
    assert [patient.crash() for _ in range(3)] == [0.0, LONGEST, LONGEST]


def test_children_that_die_of_their_tasks_are_replaced_at_once_but_no_faster_than_they_could_fork(
    patient: TickedSlot,
) -> None:
    pauses = [patient.crash(running="schedules:a") for _ in range(5)]
    assert pauses == pytest.approx([0.2] * 5)
    assert patient.crash(pipes.RAN) == pytest.approx(0.2), "it had run something"
    assert [patient.crash() for _ in range(2)] == [0.0, LONGEST]


def test_a_slot_says_when_its_next_child_comes_and_how_the_last_one_ended(patient: TickedSlot) -> None:
    first = patient.slot.pending
    assert first is not None
    assert first.text(patient.process_table.now) == "worker 2 is being started"
    patient.crash()
    patient.tick()
    booting = patient.slot.pending
    assert booting is not None
    assert booting.text(patient.process_table.now) == "worker 2 is being restarted; the last one was killed by SIGSEGV"
    patient.crash()
    waiting = patient.slot.pending
    assert waiting is not None
    expected = "worker 2 is being restarted (in 59.2 s); the last one was killed by SIGSEGV"
    assert waiting.text(patient.process_table.now + 0.8) == expected
    patient.tick(LONGEST)
    patient.process_table.born[-1].reporter.say(pipes.READY)
    patient.tick()
    assert patient.slot.pending is None
