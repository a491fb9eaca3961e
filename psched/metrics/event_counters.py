"""Telemetry listeners that count events of this process in its block of the node's counters."""

from __future__ import annotations

from typing import Any

from psched.histogram import DurationSums, sums_of
from psched.metrics.counter_file import (
    COUNT,
    FIRST_BUCKETS,
    FIRST_SUM,
    SECOND_BUCKETS,
    SECOND_SUM,
    CounterBlock,
    CounterFile,
)
from psched.metrics.group_settled_runs import settled_runs
from psched.metrics.health import MASTER
from psched.telemetry import Event, attach

RUN = "run"
"""Label of counters for runs, by section, outcome and type: how long runs took, and how late first attempts started."""
STORE = "store"
"""Label of counters for database calls, by section and operation: how long each call took."""
LEASE_LOST = "lease_lost"
RESTART = "restart"
"""Label of counters for ended children, by cause."""
OTHER = "other"
MOST_TYPES = 64
"""The maximum number of types that have their own counters. Runs of other types are counted as OTHER."""
_LONGEST_TYPE = 200
"""The maximum number of bytes of a type in UTF-8."""


class ChildCounter:
    """Counts the events of a child, in any of its threads."""

    def __init__(self, block: CounterBlock) -> None:
        """Call this in the child, after the fork."""
        block.reopen()
        self._block = block
        self._values = block.values
        self._counters: dict[tuple[str, str, str], int] = {}
        self._types: set[tuple[str, str]] = set()

    def attach(self) -> None:
        attach(self.settled, "settle")
        attach(self.polled, "poll")
        attach(self.lease_lost, "lease_lost")
        attach(self.heartbeat, "heartbeat")

    def settled(self, event: Event, fields: dict[str, Any]) -> None:
        runs = settled_runs(fields)
        section, seconds = fields["section"], fields["seconds"]
        values, counters = self._values, self._counters
        with self._block.lock:
            for type_, outcome, number, durations, waits in runs:
                kind = section, outcome, type_
                counter = counters.get(kind)
                if counter is None:
                    counter = self._counter(*kind)
                if counter is not None:
                    values[counter + COUNT] += number
                    _add_durations(values, counter + FIRST_SUM, counter + FIRST_BUCKETS, durations)
                    _add_durations(values, counter + SECOND_SUM, counter + SECOND_BUCKETS, waits)
            if seconds is not None:
                self._count_call(section, "settle", seconds)

    def polled(self, event: Event, fields: dict[str, Any]) -> None:
        if fields["seconds"] is not None:
            with self._block.lock:
                self._count_call(fields["section"], "poll", fields["seconds"])

    def lease_lost(self, event: Event, fields: dict[str, Any]) -> None:
        with self._block.lock:
            _add(self._block, LEASE_LOST)

    def heartbeat(self, event: Event, fields: dict[str, Any]) -> None:
        self._block.beat(fields["is_ready"], fields["running"])

    def _count_call(self, section: str, operation: str, seconds: float) -> None:
        _add(self._block, STORE, section, operation, seconds=seconds)

    def _counter(self, section: str, outcome: str, type_: str) -> int | None:
        """Return the counter for a kind of run that is not in `_counters`: a new kind, or a kind counted as OTHER."""
        known = section, type_
        if known not in self._types and len(self._types) < MOST_TYPES:
            self._types.add(known)
        shown = type_.encode("utf-8", "replace")[:_LONGEST_TYPE].decode("utf-8", "ignore")
        shown = shown.translate({9: " ", 0: " "}) if known in self._types else OTHER
        counter = self._block.counter(RUN, section, outcome, shown)
        if counter is not None and known in self._types:  # otherwise the dictionary could grow without limit
            self._counters[section, outcome, type_] = counter
        return counter


class MasterCounter:
    """Counts the children of the master, and how they end. Used in the master."""

    def __init__(self, file: CounterFile, text: str) -> None:
        """`text`: the result of `node_text`, for readers."""
        self._file = file
        self._block = file.block(MASTER, text)
        if self._block is not None:
            self._block.forked(0)
        self._next: CounterBlock | None = None
        self._detach = [attach(self.forked, "fork"), attach(self.ended, "child_exit")]

    def block(self, name: str) -> CounterBlock | None:
        """Return the block for the next child of a slot."""
        block = self._file.block(name)
        if block is not None:
            block.about_to_fork()
        self._next = block
        return block

    def release(self, name: str) -> None:
        """Free the block of a removed slot. The next new slot gets the block, and adds to its counts."""
        self._file.release(name)

    def forked(self, event: Event, fields: dict[str, Any]) -> None:
        self._file.child_forked(fields["name"], fields["pid"])

    def ended(self, event: Event, fields: dict[str, Any]) -> None:
        if self._file.child_ended(fields["pid"]) and self._block is not None:
            _add(self._block, RESTART, fields["cause"])

    def close_in_child(self) -> None:
        """Unmap the blocks of other children. Called in a child.

        The block that was assigned last belongs to this child.
        """
        self._file.unmap(but=self._next)

    def close(self) -> None:
        for detach in self._detach:
            detach()
        self._file.close()


def _add(block: CounterBlock, *label: str, seconds: float | None = None) -> None:
    counter = block.counter(*label)
    if counter is not None:
        block.values[counter + COUNT] += 1
        if seconds is not None:
            _add_durations(block.values, counter + FIRST_SUM, counter + FIRST_BUCKETS, sums_of((seconds,)))


def _add_durations(values: memoryview[float], sum_at: int, buckets_at: int, durations: DurationSums) -> None:
    seconds, buckets = durations
    values[sum_at] += seconds
    for index, number in buckets:
        values[buckets_at + index] += number
