"""What schedules and queue tasks on Redis have in common: everything of `LeaseStore`. Used in children and clients."""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from psched import fork_safety as forks
from psched.backends.common.lease_history import RELEASED, RETRIED, LostRow, finished_before, refusal
from psched.backends.common.retries import sent_within
from psched.backends.redis.alerts import LONGEST_ERROR, RedisFailures
from psched.backends.redis.client import Argument, RedisServer, is_refused, passes
from psched.backends.redis.node_registry import RedisNodes
from psched.backends.redis.rows import HAND_OVER, SubmitOnAdvance, stored
from psched.backends.redis.schema import Table
from psched.backends.redis.scripts import Scripts
from psched.backends.redis.wakeup import WakeList
from psched.clock import boottime
from psched.error_summary import shortened
from psched.errors import IdempotentAlreadyFinishedError, IdempotentNotFoundError, ScheduleError
from psched.model import WORKER_DIED, Claim, Lease, Retry
from psched.store import Accepts, Finding, Wakeup
from psched.store.alerts import UnreportedFailures
from psched.store.node_registry import Nodes

log = logging.getLogger(__name__)

_BATCH = 500
"""Leases renewed, or given back, by one script, to keep it short."""

_ROW = {"schedules": "schedule", "queue": "task"}

Answer = Sequence[Any]
"""What a script that settles says: a word, and what belongs to it."""


class RedisLeaseStore:
    """Due rows with leases in one table; `claimed` makes of one that was just leased what the engine knows."""

    _settling: ClassVar[Sequence[str]]
    """The scripts that settle what went well."""

    shows_fence = True
    knows_holders = True
    keeps_types = True

    def __init__(
        self, server: RedisServer, table: Table, holder: str, claimed: Callable[[bytes, Sequence[Any]], Claim]
    ) -> None:
        """Connects to nothing yet."""
        self._server = server
        self._table = table
        self._holder = holder
        self._claimed = claimed
        self._scripts = Scripts(table.kind)
        self.nodes: Nodes | None = RedisNodes(self._run)
        self._numbers = AcquireNumbers()
        self.failures: UnreportedFailures | None = RedisFailures(self._run)
        self.sent_within = sent_within(server.location.timeouts)

    def create_tables(self) -> None:
        """Make the table; idempotent. Raises ConfigError for a table of another version, or of another kind."""
        self._table.create()

    def check_tables(self) -> None:
        """Raise ConfigError naming the remedy when the table cannot be used; log when the server may drop rows."""
        self._table.check()

    def prepare(self, types: Collection[str] | None = None) -> None:
        """Read the scripts that every run needs."""
        for verb in ("acquire", "next_due", *self._settling):
            self._scripts[verb]

    def diagnose(self) -> Iterator[Finding]:
        """Yield what `psched doctor` shows of this store."""
        return self._table.diagnose()

    def now(self) -> float:
        """Return the server's clock in unix seconds, to the millisecond."""

        def work(uncertain: bool) -> float:
            seconds, micros = self._server.call_on(self._table.meta, "TIME")
            return int(seconds) + int(micros) // 1000 / 1000

        return self._server.run(work)

    def is_refused(self, error: Exception) -> bool:
        """Tell whether `error` means that the server refuses our user."""
        return is_refused(error)

    def is_unavailable(self, error: Exception) -> bool:
        """Tell whether `error` means that the server is away, overloaded, full or read-only."""
        return passes(error)

    def acquire(
        self,
        limit: int,
        alive_time: float,
        types: Collection[str] | None = None,
        accepts: Accepts | None = None,
        ahead: bool = False,
    ) -> list[Claim]:
        """Lease up to `limit` due rows, in the order in which they are to be run.

        Each attempt writes a number of its own into its rows. While one without an answer may hold rows, as it may
        also come late, every further one undoes by that number what it did.
        """
        kinds = _kinds(types)
        if limit < 1 or kinds == []:
            return []
        alive = math.ceil(alive_time * 1000)

        def work(uncertain: bool) -> Answer:
            asked = boottime()
            undone = self._numbers.to_be_undone(asked)
            number = self._numbers.next()
            given = [limit, alive, int(ahead), self._holder, number, *counted(undone), *counted(kinds)]
            try:
                rows: Answer = self._call("acquire", *given)
            except BaseException:
                self._numbers.unanswered(number, asked + alive_time)
                raise
            return rows

        found = self._server.run(work)
        self._forget([strange for strange in found if not strange[1]])
        return [self._claimed(key, row) for key, row, *_ in found if row]

    def next_due(self, types: Collection[str] | None = None, accepts: Accepts | None = None) -> float | None:
        """Return the seconds until something is due, 0.0 when it is; None when nothing is stored."""
        kinds = _kinds(types)
        if kinds == []:
            return None
        wait = self._server.run(lambda _: self._call("next_due", *counted(kinds)))
        return None if wait is None else int(wait) / 1000

    def due_by_type(self) -> Mapping[str, float]:
        """Return in how many seconds the earliest row of each type is due."""
        found = self._server.run(lambda _: self._call("due_by_type"))
        heads = zip(found[::2], found[1::2], strict=True)
        return {type_.decode(errors="replace"): int(wait) / 1000 for type_, wait in heads}

    def open_wakeup(self, accepts: Accepts | None = None) -> Wakeup:
        """Return a bell on the table's wake list."""
        return WakeList(self._server, self._table, accepts)

    def extend(self, leases: Sequence[Lease], alive_time: float, begun: bool = True) -> list[Lease | None]:
        """Make each lease end `alive_time` seconds from now, the runs recorded as `begun`; None where it is lost."""
        renewed: list[Lease | None] = []
        for start in range(0, len(leases), _BATCH):
            part = leases[start : start + _BATCH]
            pairs = [word for lease in part for word in self._lease_words(lease)]
            ends = self._run("extend", math.ceil(alive_time * 1000), int(begun), *pairs)
            renewed += [_renewed(lease, end) for lease, end in zip(part, ends, strict=True)]
        return renewed

    def release(self, lease: Lease, until: float) -> None:
        """Make the row due now, the attempt not counted."""
        self._settle(lease, "release", RELEASED, [], until)

    def retry(
        self,
        lease: Lease,
        wait: float,
        error: str | None,
        until: float,
        counted: bool = True,
        version: int | None = None,
    ) -> None:
        """Make the row due `wait` seconds from now, and keep the end of `error`."""
        given = [math.ceil(wait * 1000), 0 if counted else 1, *_version(version), *storable(error)]
        self._settle(lease, "retry", RETRIED, given, until)

    def retry_many(self, retries: Sequence[Retry], until: float) -> list[ScheduleError | None]:
        """Do for each what `retry` does, some hundreds by one script."""
        found: list[ScheduleError | None] = []
        for start in range(0, len(retries), _BATCH):
            part = retries[start : start + _BATCH]
            words = [word for retry in part for word in self._retry_words(retry)]
            answers, uncertain = self._answers("retry_many", words, until)
            for one, answer in zip(part, answers, strict=True):
                found.append(_unless_done_before(judged(one.lease, answer, RETRIED, uncertain)))
        return found

    def give_back(self, holder: str, suspects: Collection[str], longest_wait: float, error: str = WORKER_DIED) -> int:
        """Give back what a dead `holder` leases."""
        count = 0
        given: list[Argument] = [holder, math.ceil(longest_wait * 1000), _BATCH, error, *suspects]
        while done := int(self._run("give_back", *given)):
            count += done
        return count

    def delete(self, key: str) -> None:
        """Delete the row, leased or not. Raises IdempotentNotFoundError."""
        if not self._delete(key):
            raise IdempotentNotFoundError(f"no {_ROW[self._table.kind]} has the key {key!r}")

    def shares_database(self, other: object) -> bool:
        """Tell whether `other` is a store in the same database, so that one script may write both tables."""
        return isinstance(other, RedisLeaseStore) and self._server.is_same(other._server)

    def close(self) -> None:
        """Close every connection; idempotent."""
        self._server.close()

    def _delete(self, key: str, *more: Argument) -> bool:
        """Delete the row that is there now, and tell whether there is one."""
        seen = self._run("nonce", key)
        if seen is None:
            return False
        return self._server.run(lambda again: self._call("delete", key, seen[0], *more) == 1 or again)

    def _call(self, verb: str, *arguments: Argument) -> Any:
        """Run the script of `verb` once."""
        return self._server.call(self._scripts[verb], [self._table.meta], arguments)

    def _run(self, verb: str, *arguments: Argument, until: float | None = None) -> Any:
        """Run the script of `verb`, which may be done twice without harm."""
        return self._server.run(lambda _: self._call(verb, *arguments), until)

    def _get(self, key: str) -> Mapping[str, Any] | None:
        found = self._run("get", key)
        return stored(key, found) if found else None

    def _settle(
        self,
        lease: Lease,
        verb: str,
        outcome: str | None,
        arguments: Sequence[Argument],
        until: float,
        handover: SubmitOnAdvance | None = None,
    ) -> Answer | None:
        """Run a script that settles; None when it is done, its answer when the lease is ours but it was not done.

        It ends the lease with `outcome`, or does not end it (None). Raises PreemptedError, OutcomeUnknownError,
        IdempotentNotFoundError, AlreadyFinishedError, IdempotentAlreadyFinishedError.
        """
        script = self._scripts[verb] if handover is None else HAND_OVER
        tables, more = ([], []) if handover is None else (handover.tables, handover.arguments)
        given = [*self._lease_words(lease), *arguments, *more]

        def work(uncertain: bool) -> tuple[Answer, bool]:
            return self._server.call(script, [self._table.meta, *tables], given), uncertain

        answer, uncertain = self._server.run(work, until)
        refused = judged(lease, answer, outcome, uncertain)
        if refused is not None:
            raise refused
        return answer if answer[0] == b"changed" else None

    def _answers(self, verb: str, arguments: Sequence[Argument], until: float) -> tuple[list[Any], bool]:
        """Run a script that settles many; return its answers, and whether an attempt before had none."""

        def work(uncertain: bool) -> tuple[list[Any], bool]:
            return self._call(verb, *arguments), uncertain

        return self._server.run(work, until)

    def _settle_many(
        self, leases: Sequence[Lease], verb: str, outcome: str, arguments: Sequence[Argument], until: float
    ) -> list[ScheduleError | None]:
        """Run a script that settles many; for each None, also if an earlier call had, or what `_settle` would raise."""
        found: list[ScheduleError | None] = []
        for start in range(0, len(leases), _BATCH):
            part = leases[start : start + _BATCH]
            pairs = [word for lease in part for word in self._lease_words(lease)]
            answers, uncertain = self._answers(verb, [*arguments, *pairs], until)
            for lease, answer in zip(part, answers, strict=True):
                refused = None if answer is None else judged(lease, answer, outcome, uncertain)
                found.append(_unless_done_before(refused))
        return found

    def _lease_words(self, lease: Lease) -> tuple[Argument, Argument]:
        """Return the key and what the scripts take of a lease."""
        return lease.key, f"{lease.fence}:{lease.claim}:{self._holder}"

    def _retry_words(self, retry: Retry) -> Sequence[Argument]:
        wait, error = math.ceil(retry.wait * 1000), storable(retry.error) or [""]
        return *self._lease_words(retry.lease), wait, 0 if retry.counted else 1, *_version(retry.version), *error

    def _forget(self, strange: Sequence[Answer]) -> None:
        """Say of keys that were found to have no rows, once: the table has forgotten them."""
        for key in (found[0].decode(errors="replace") for found in strange):
            row = f"{self._table.prefix}row:{key}"
            log.error("key=%s cannot be run: %s is no hash, or gone; delete what is left of it", key, row)


def new_number() -> int:
    """Return a number that no other call has, to know one's own rows by when an answer is lost."""
    return secrets.randbits(62)


def counted(values: Collection[Argument] | None) -> list[Argument]:
    """Return how many there are and `values`, as scripts take lists; -1 for None."""
    return [-1] if values is None else [len(values), *values]


def storable(error: str | None) -> list[str]:
    """Return `error` as UTF-8 can have it, of a long one the summary and the end; nothing for None."""
    return [] if error is None else [shortened(error, LONGEST_ERROR).encode(errors="replace").decode()]


def _version(version: int | None) -> list[Argument]:
    """Return the version because of which a row is to wait, as scripts take it."""
    return ["" if version is None else version]


def _kinds(types: Collection[str] | None) -> list[str] | None:
    """Return each type once; none is empty, which stands for all of them in the names of keys."""
    return None if types is None else sorted(set(types) - {""})


def _renewed(lease: Lease, answer: Answer | None) -> Lease | None:
    if answer is None:
        return None
    return lease._replace(
        expires_at=int(answer[0]) / 1000, cancel_requested=answer[1] == b"1", paused=answer[2] == b"1"
    )


def judged(lease: Lease, answer: Answer, outcome: str | None, uncertain: bool) -> ScheduleError | None:
    """Return why a script did not settle a run; None when it did, or one before whose answer was lost.

    Also None when the row is under `lease` but its rule is another one now.
    """
    word = answer[0]
    if word in (b"done", b"changed"):
        return None
    if word == b"gone":
        return refusal(lease, None, outcome, uncertain)
    if word == b"entered":
        return None if uncertain else finished_before(lease)
    status, node, endings, nonce = (part.decode(errors="replace") for part in answer[1:])
    owner = f"{node} holds it now" if status == "running" else "no worker holds it now"
    return refusal(lease, LostRow(endings, int(nonce) if nonce.isdecimal() else None, owner), outcome, uncertain)


def _unless_done_before(refused: ScheduleError | None) -> ScheduleError | None:
    return None if isinstance(refused, IdempotentAlreadyFinishedError) else refused


@dataclass(frozen=True, slots=True)
class _Span:
    """Acquires in a row without an answer; what they have leased ends at `end` (boottime seconds) at the latest."""

    first: int
    last: int
    end: float


class AcquireNumbers:
    """Gives each acquire a number, and remembers which may have taken rows that nobody knows of. Any thread.

    Acquires that fail one after another are one span, so an outage costs one however often it was tried.
    """

    def __init__(self) -> None:
        self.begin_anew()
        forks.register_for_fork(self)

    def begin_anew(self) -> None:
        """Begin with a number of chance; in a process that was forked off, whose parent goes on with its own."""
        self._lock = threading.Lock()
        self._last = secrets.randbits(48)  # Lua compares numbers up to 2 to the 53rd
        self._spans: list[_Span] = []

    def next(self) -> int:
        """Return a number that no other acquire of this holder has."""
        with self._lock:
            self._last += 1
            return self._last

    def unanswered(self, number: int, end: float) -> None:
        """Remember that an acquire had no answer; what it leased, if it did, ends at `end`."""
        with self._lock:
            before = self._spans[-1] if self._spans else None
            if before is not None and before.last == number - 1:
                self._spans[-1] = replace(before, last=number, end=max(before.end, end))
            else:
                self._spans.append(_Span(number, number, end))

    def to_be_undone(self, now: float) -> list[int]:
        """Return the first and the last number of each span that may hold rows still, one after another."""
        with self._lock:
            self._spans = [span for span in self._spans if span.end > now]
            return [number for span in self._spans for number in (span.first, span.last)]
