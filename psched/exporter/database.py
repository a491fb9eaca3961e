"""Reads facts from the database for each scrape, in one thread per section.

A scrape waits a limited time for such a thread. So a scrape never hangs, even if the driver waits long for a database
that does not answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from psched.clock import monotonic
from psched.error_messages import one_line
from psched.errors import NotSupportedError
from psched.insight import Insight, ScheduleInsight, TaskInsight
from psched.insight.table_insight import problem_of
from psched.store.counts import Counted, TypeCounts

log = logging.getLogger(__name__)

MOST_TYPES = 32
"""The maximum number of types per section in psched_oldest_due_seconds. The types with the earliest due time are
chosen."""
MOST_OVERDUE = 50
MOST = 10_000
"""The maximum number of rows of one state that are counted."""
_MOST_OF_TYPE = 1
"""The maximum number of rows of one type that are counted. It is small, because these numbers are not exported."""


@dataclass(frozen=True, slots=True)
class SectionFacts:
    """Facts about one section, read from the database.

    `overdue`: how many seconds each overdue schedule is late. `clock_offset`: this host's clock minus the database's
    clock, in seconds.
    """

    counts: Mapping[str, Counted]
    types: Sequence[TypeCounts]
    overdue: Mapping[str, float]
    clock_offset: float


class SectionReader:
    """Reads what the metrics need from one section's tables. Call it from one thread at a time."""

    def __init__(
        self, name: str, ask: Callable[[], SectionFacts], problem: Callable[[Exception], str] = one_line
    ) -> None:
        """`ask`: queries the database. `problem`: returns a sentence about an error of `ask`."""
        self.name = name
        self._ask = ask
        self._problem = problem
        self._asked: Future[SectionFacts] | None = None
        self._is_down = False

    def begin(self) -> None:
        """Start reading in a thread. Does nothing while an earlier reading still waits for its answer."""
        if self._asked is None or self._asked.done():
            asked = Future[SectionFacts]()
            threading.Thread(target=self._answer, args=(asked,), name=f"facts of {self.name}", daemon=True).start()
            self._asked = asked  # not before: if no thread can start, the next scrape has to try again

    def facts(self, until: float) -> SectionFacts | None:
        """Return the answer; None if the query fails, or does not end before `until` (monotonic seconds)."""
        assert self._asked is not None
        try:
            facts = self._asked.result(max(0.0, until - monotonic()))
        except TimeoutError as error:
            self._report(f"the database does not answer: {str(error) or 'no answer in time'}")
            return None
        except Exception as error:  # noqa: BLE001 – whatever a driver raises, there are no facts
            self._report(self._problem(error))
            return None
        if self._is_down:
            log.info("section=%s the database answers again", self.name)
            self._is_down = False
        return facts

    def _report(self, problem: str) -> None:
        if not self._is_down:
            log.warning("section=%s %s", self.name, problem)
        self._is_down = True

    def _answer(self, asked: Future[SectionFacts]) -> None:
        try:
            asked.set_result(self._ask())
        except BaseException as error:  # noqa: BLE001 – `facts` raises it
            asked.set_exception(error)


def section_readers(insight: Insight) -> list[SectionReader]:
    readers = []
    if (schedules := insight.schedules) is not None:
        readers.append(SectionReader("schedules", lambda: _schedule_facts(schedules), partial(problem_of, schedules)))
    if (tasks := insight.tasks) is not None:
        readers.append(SectionReader("queue", lambda: _facts(tasks), partial(problem_of, tasks)))
    return readers


def _schedule_facts(schedules: ScheduleInsight) -> SectionFacts:
    facts = _facts(schedules)
    now = time.time() - facts.clock_offset
    late = {row.key: now - row.next_time - row.delay for row in schedules.overdue(MOST_OVERDUE)}
    return SectionFacts(facts.counts, facts.types, late, facts.clock_offset)


def _facts(section: ScheduleInsight | TaskInsight) -> SectionFacts:
    begun = time.time()
    now = section.now()
    offset = (begun + time.time()) / 2 - now
    try:
        types = section.types(MOST_TYPES, _MOST_OF_TYPE)
    except NotSupportedError:  # rdb_compat keeps types inside the data
        types = []
    return SectionFacts(section.counts(MOST), types, {}, offset)
