"""The base class of the Redis stores of schedules and of tasks. It implements `LeaseStore`."""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, repeat
from typing import Any, ClassVar

from psched import fork_safety as forks
from psched.backends.common.ended_leases import RELEASED, RETRIED, LostRow, finished_before, refusal
from psched.backends.common.retries import sent_within
from psched.backends.common.rows import BATCH, storable
from psched.backends.redis import script_composer
from psched.backends.redis.alert_store import RedisFailures
from psched.backends.redis.client import Argument, RedisServer, is_refused, is_temporary
from psched.backends.redis.delivery_watermarks import RedisWatermarks
from psched.backends.redis.node_registry import RedisNodes
from psched.backends.redis.outbox import RedisOutbox
from psched.backends.redis.rows import stored
from psched.backends.redis.run_stats import RedisRunStats
from psched.backends.redis.table_setup import RedisTable
from psched.backends.redis.visitor_actions import RedisVisitorActions
from psched.backends.redis.wakeup import WakeList
from psched.clock import boottime
from psched.errors import ScheduleError
from psched.model import WORKER_DIED, Claim, Lease, Retry
from psched.store import Accepts, AcquireOptions, Finding, LeaseStore, Wakeup

log = logging.getLogger(__name__)

Answer = Sequence[Any]
"""The answer of a settling script for a run that it did not settle: `changed`, `entered`, `lost` or `gone`, then
details."""


class RedisLeaseStore(LeaseStore):
    _settling: ClassVar[Sequence[str]]
    """The scripts that settle successful runs."""

    def __init__(
        self, server: RedisServer, table: RedisTable, holder: str, claimed: Callable[[bytes, Sequence[Any]], Claim]
    ) -> None:
        """`claimed`: makes a claim from a row's key and the values that the script `acquire` returns."""
        self._server = server
        self._table = table
        self._holder = holder
        self._claimed = claimed
        self.nodes = RedisNodes(self._run)
        self.stats = RedisRunStats(self._run)
        self.actions = RedisVisitorActions(self._run)
        self._numbers = AcquireNumbers()
        self.failures = RedisFailures(self._run)
        self.watermarks = RedisWatermarks(self._run)
        self.outbox = RedisOutbox(self._run)
        self.sent_within = sent_within(server.location.timeouts)

    def create_tables(self) -> None:
        self._table.create()

    def check_tables(self) -> None:
        self._table.check()

    def pending_statements(self) -> list[str]:
        return self._table.pending()

    def prepare(self, types: Collection[str] | None = None) -> None:
        for verb in ("acquire", "next_due", *self._settling):
            script_composer.compose(self._table.kind, verb)

    def diagnose(self, writing: bool = True) -> Iterator[Finding]:
        return self._table.diagnose(writing)

    def now(self) -> float:

        def work(uncertain: bool) -> float:
            seconds, micros = self._server.node(self._table.meta).time()
            return int(seconds) + int(micros) // 1000 / 1000

        return self._server.run(work)

    def is_refused(self, error: Exception) -> bool:
        return is_refused(error)

    def is_unavailable(self, error: Exception) -> bool:
        return is_temporary(error)

    def _acquire(self, limit: int, options: AcquireOptions) -> list[Claim]:
        """Lease up to `limit` due rows. Each attempt writes its own number into these rows.

        An attempt whose answer was lost may have leased rows, or the server may still execute it. So, until such leases
        would have ended, each later attempt first releases the rows with the number of the lost attempt.
        """
        kinds = _kinds(options.types)
        if kinds == []:
            return []
        alive = math.ceil(options.alive_time * 1000)

        def work(uncertain: bool) -> Answer:
            asked = boottime()
            undone = self._numbers.to_be_undone(asked)
            number = self._numbers.next()
            given = [limit, alive, int(options.ahead), self._holder, number, *counted(undone), *counted(kinds)]
            try:
                rows: Answer = self._call("acquire", *given)
            except BaseException:
                self._numbers.unanswered(number, asked + options.alive_time)
                raise
            return rows

        found = self._server.run(work)
        self._drop_unreadable([row for row in found if not row[1]])
        return [self._claimed(key, row) for key, row, *_ in found if row]

    def next_due(self, types: Collection[str] | None = None, accepts: Accepts | None = None) -> float | None:
        kinds = _kinds(types)
        if kinds == []:
            return None
        wait = self._run("next_due", *counted(kinds))
        return None if wait is None else int(wait) / 1000

    def due_by_type(self) -> Mapping[str, float]:
        found = self._run("due_by_type")
        heads = zip(found[::2], found[1::2], strict=True)
        return {type_.decode(errors="replace"): int(wait) / 1000 for type_, wait in heads}

    def open_wakeup(self, accepts: Accepts | None = None) -> Wakeup:
        return WakeList(self._server, self._table, accepts)

    def extend(self, leases: Sequence[Lease], alive_time: float, begun: bool = True) -> list[Lease | None]:
        given = math.ceil(alive_time * 1000), int(begun)
        answers = self._answers("extend", map(self._lease_arguments, leases), None, given)
        return [_renewed(lease, answer) for lease, (answer, _) in zip(leases, answers, strict=True)]

    def release_many(self, leases: Sequence[Lease], until: float, begun: bool = True) -> list[ScheduleError | None]:
        return self._settle_many("release", RELEASED, leases, until, common=["", int(begun)])

    def retry_many(self, retries: Sequence[Retry], until: float) -> list[ScheduleError | None]:
        words: list[list[Argument]] = [
            [
                *self._lease_arguments(retry.lease),
                math.ceil(retry.wait * 1000),
                0 if retry.counted else 1,
                "" if retry.version is None else retry.version,
                storable(retry.error) or "",
            ]
            for retry in retries
        ]
        return self._settle_many("retry_many", RETRIED, [retry.lease for retry in retries], until, words)

    def held_claims(self, holder: str) -> dict[str, int]:
        return {key.decode(): int(claim) for key, claim in self._run("held_claims", holder)}

    def give_back(
        self,
        holder: str,
        suspects: Collection[str],
        longest_wait: float,
        error: str = WORKER_DIED,
        claims: Mapping[str, int] | None = None,
    ) -> int:
        count = 0
        chosen: list[Argument] = []
        if claims is not None:
            chosen = [len(claims), *[word for claim in claims.items() for word in claim]]
        given: list[Argument] = [
            holder,
            math.ceil(longest_wait * 1000),
            BATCH,
            error,
            len(suspects),
            *suspects,
            *chosen,
        ]
        while done := int(self._run("give_back", *given)):
            count += done
        return count

    def shares_database(self, other: object) -> bool:
        return isinstance(other, RedisLeaseStore) and self._server.location == other._server.location

    def close(self) -> None:
        self._server.close()

    def _call(self, verb: str, *arguments: Argument) -> Any:
        return self._server.call(script_composer.compose(self._table.kind, verb), [self._table.meta], arguments)

    def _run(self, verb: str, *arguments: Argument) -> Any:
        """Run the script `verb`. It must be safe to run twice."""
        return self._server.run(lambda _: self._call(verb, *arguments))

    def _get(self, key: str) -> dict[str, Any] | None:
        found = self._run("get", key)
        return stored(key, found) if found else None

    def _answers(
        self,
        verb: str,
        rows: Iterable[Sequence[Argument]],
        until: float | None,
        common: Sequence[Argument] = (),
        tables: Sequence[str] = (),
    ) -> Iterator[tuple[Answer | None, bool]]:
        """Run a script on `BATCH` rows at a time.

        Yield each row's answer, and whether the answer to an earlier attempt was lost. `rows`: the arguments of each
        row. `common`: arguments before those of the rows. `tables`: other tables that the script writes.
        """
        script, keys = script_composer.compose(self._table.kind, verb), [self._table.meta, *tables]

        def work(arguments: Sequence[Argument], uncertain: bool) -> tuple[Sequence[Answer | None], bool]:
            return self._server.call(script, keys, arguments), uncertain

        rest = iter(rows)
        while batch := list(islice(rest, BATCH)):
            arguments = [*common, *chain.from_iterable(batch)]
            answers, uncertain = self._server.run(partial(work, arguments), until)
            yield from zip(answers, repeat(uncertain))

    def _settle_many(
        self,
        verb: str,
        outcome: str | None,
        leases: Sequence[Lease],
        until: float,
        rows: Iterable[Sequence[Argument]] | None = None,
        common: Sequence[Argument] = (),
    ) -> list[ScheduleError | None]:
        """Run a script that ends leases. If `outcome` is None, the script writes rows and keeps their leases.

        `outcome`: how the runs ended. `rows` and `common`: see `_answers`; by default `rows` are the keys and leases.
        """
        answers = self._answers(verb, map(self._lease_arguments, leases) if rows is None else rows, until, common)
        return [
            None if answer is None else refused(lease, answer, uncertain, outcome)
            for lease, (answer, uncertain) in zip(leases, answers, strict=True)
        ]

    def _lease_arguments(self, lease: Lease) -> tuple[Argument, Argument]:
        return lease.key, f"{lease.fence}:{lease.claim}:{self._holder}"

    def _drop_unreadable(self, unreadable: Sequence[Answer]) -> None:
        """Log the keys that have no valid row. The script has already removed them from the sets of the table."""
        for key in (found[0].decode(errors="replace") for found in unreadable):
            row = f"{self._table.prefix}row:{key}"
            log.error(
                "key=%s cannot be run: the Redis key %s is missing or not a hash; if it exists, delete it", key, row
            )


class SubmitOnAdvance:
    """The `connection` that an advance passes to `on_commit`.

    It keeps the tasks for the script `advance_and_submit`.
    """

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.tables: list[str] = []
        self.arguments: list[Argument] = []

    def submit(self, table: str, arguments: Sequence[Argument]) -> None:
        """Set the table and the arguments of the submission. Raises ValueError on a second call."""
        if self.tables:
            raise ValueError("an occurrence can make one submission only; pass all its tasks to one call")
        self.tables = [table]
        self.arguments = list(arguments)


CHARACTERS_AT_ONCE = 4_000_000
"""The maximum number of characters of data that one script writes. Writing them blocks the server for about 50 ms."""


def new_number() -> int:
    """Return a random number. By this number a call recognises its own rows after a lost answer."""
    return secrets.randbits(62)


def counted(values: Collection[Argument] | None) -> list[Argument]:
    """Return `values` in the form of a list argument of a script: their number, then the values; -1 for None."""
    return [-1] if values is None else [len(values), *values]


def _kinds(types: Collection[str] | None) -> list[str] | None:
    """Return the types without duplicates and without "", because in the names of keys "" stands for all types."""
    return None if types is None else sorted(set(types) - {""})


def _renewed(lease: Lease, answer: Answer | None) -> Lease | None:
    if answer is None:
        return None
    return lease._replace(
        expires_at=int(answer[0]) / 1000, cancel_requested=answer[1] == b"1", paused=answer[2] == b"1"
    )


def refused(lease: Lease, answer: Answer, uncertain: bool, outcome: str | None) -> ScheduleError | None:
    """Return the error for a script's `answer`, or None if an earlier attempt of the call settled the run."""
    word = answer[0]
    if word == b"gone":
        return refusal(lease, None, outcome, uncertain)
    if word == b"entered":
        return None if uncertain else finished_before(lease)
    status, node, endings, nonce = (part.decode(errors="replace") for part in answer[1:])
    owner = f"{node} holds it now" if status == "running" else "no worker holds it now"
    return refusal(lease, LostRow(endings, int(nonce) if nonce.isdecimal() else None, owner), outcome, uncertain)


@dataclass(frozen=True, slots=True)
class _Span:
    """Consecutive acquires whose answers were lost. Their leases end no later than `end` (boottime seconds)."""

    first: int
    last: int
    end: float


class AcquireNumbers:
    """Gives each acquire of a process a number, and remembers the acquires whose answers were lost.

    Such acquires may have leased rows. Consecutive numbers are kept as one span, so that a long outage needs little
    memory. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self.reset_after_fork()
        forks.register_for_fork(self)

    def reset_after_fork(self) -> None:
        """Start at a random number. Called in a new process, because the parent continues with its own numbers."""
        self._lock = threading.Lock()
        self._last = secrets.randbits(48)  # Lua compares numbers exactly only up to 2 to the 53rd
        self._spans: list[_Span] = []

    def next(self) -> int:
        """Return a number that no other acquire of this holder has."""
        with self._lock:
            self._last += 1
            return self._last

    def unanswered(self, number: int, end: float) -> None:
        """Remember an acquire whose answer was lost. `end`: when its leases would end (boottime seconds)."""
        with self._lock:
            before = self._spans[-1] if self._spans else None
            if before is not None and before.last == number - 1:
                self._spans[-1] = replace(before, last=number, end=max(before.end, end))
            else:
                self._spans.append(_Span(number, number, end))

    def to_be_undone(self, now: float) -> list[int]:
        """Return the acquires whose rows must be released: first and last number of each span, as a flat list."""
        with self._lock:
            self._spans = [span for span in self._spans if span.end > now]
            return [number for span in self._spans for number in (span.first, span.last)]
