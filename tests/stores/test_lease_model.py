"""After any calls by several holders, at any times, a store has the state of the model of leases.

Hypothesis chooses the calls and their holders, and when time passes. Then all stored times move back, and so do the
fences that holders have, if these are due times.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import Bundle, RuleBasedStateMachine, multiple, rule, run_state_machine_as_test

from psched.backends.redis import script_composer
from psched.backends.redis.script_composer import Script
from psched.backends.sql.compiled_statements import Statement
from psched.errors import NotFoundError, ScheduleError
from psched.model import Claim
from psched.store import ScheduleStore
from tests.stores.bench import LONG_AGO, LOST, Bench, soon
from tests.stores.lease_model import APART, LeaseModel
from tests.stores.test_interleavings import FENCE, rewritten, unfenced_scripts

KEYS = ["a", "b", "c", "d"]
LEASES = st.sampled_from([100, 300])
WAITS = st.sampled_from([100, 200, 1000])
HOLDERS = st.sampled_from(["one", "two", "three"])
CLOCKS = {
    "julianday('now')": "(julianday('now') + 1 / 24.0)",
    "statement_timestamp()": "(statement_timestamp() + interval '1 hour')",
    "UTC_TIMESTAMP(3)": "(UTC_TIMESTAMP(3) + INTERVAL 1 HOUR)",
}
"""Each database's expression for the time, and one for a time that is an hour later."""
EXAMPLES = 8
"""The number of sequences of calls that are tried."""
SEEDS = 20
"""The number of seeds that are tried to find a removed guard. Each seed prefers other rules."""
STEPS = 40


on_these = pytest.mark.parametrize(
    "bare",
    [("rdb", "sqlite"), ("rdb_compat", "sqlite"), ("rdb", "postgresql"), ("redis", "redis")],
    indirect=True,
    ids="-".join,
)
"""The benches on which removed guards are searched. On the others guards work in the same way."""


@dataclass
class Held:
    """A claim of one holder. Its lease is replaced when it is extended."""

    store: ScheduleStore
    claim: Claim
    grant: int


class Leases(RuleBasedStateMachine):
    """Three holders of leases on one table."""

    claims: Any = Bundle("claims")

    def __init__(self, bench: Bench, stores: dict[str, ScheduleStore]) -> None:
        super().__init__()
        self.bench = bench
        self.stores = stores
        self.model = LeaseModel()
        self.held: list[Held] = []
        self.start = stores["one"].now()
        self.leases = itertools.count(50)

    @rule(key=st.sampled_from(KEYS), ago=st.integers(-3, 20))
    def add(self, key: str, ago: int) -> None:
        if key not in self.model.rows:
            due = self.model.now - 100 * ago - 10
            self.model.add(key, due, LONG_AGO)
            self.bench.add(self.stores["one"], key, self.stored(due), next_time=LONG_AGO)

    @rule(key=st.sampled_from(KEYS))
    def delete(self, key: str) -> None:
        if self.model.rows.pop(key, None) is None:
            with pytest.raises(NotFoundError):
                self.stores["two"].delete(key)
        else:
            self.stores["two"].delete(key)

    @rule(target=claims, holder=HOLDERS, limit=st.integers(1, 3), alive_time=LEASES)
    def acquire(self, holder: str, limit: int, alive_time: int) -> Any:
        store, alive_time = self.stores[holder], self.lease(alive_time)
        claims = {claim.row.key: claim for claim in store.acquire(limit, alive_time)}
        grants = self.model.acquire(list(claims), limit, alive_time)
        for key, claim in claims.items():
            assert claim.row.scheduled_time == self.model.rows[key].occurrence
        found = [Held(store, claims[key], grant) for key, grant in grants.items()]
        self.held += found
        return multiple(*found)

    @rule(held=claims, alive_time=LEASES)
    def extend(self, held: Held, alive_time: int) -> None:
        alive_time = self.lease(alive_time)
        (lease,) = held.store.extend([held.claim.lease], alive_time)
        assert (lease is not None) == self.holds(held), "extended by whoever holds it, and by nobody else"
        if lease is not None:
            held.claim = Claim(held.claim.row, lease)
            self.model.extend(lease.key, alive_time)

    @rule(held=claims)
    def release(self, held: Held) -> None:
        self.settle(held, partial(held.store.release, held.claim.lease, soon()), 0)

    @rule(held=claims, wait=WAITS)
    def retry(self, held: Held, wait: int) -> None:
        self.settle(held, partial(held.store.retry, held.claim.lease, wait, "error", soon()), wait)

    @rule(held=claims, wait=st.sampled_from([-500, -100, 200]))
    def finish(self, held: Held, wait: int) -> None:
        following = held.claim.row.scheduled_time + 3600
        due = self.stored(self.model.now + wait)
        self.settle(held, partial(held.store.advance, held.claim, following, due, soon()), wait, following)

    @rule(seconds=st.sampled_from([100, 200, 400]))
    def let_time_pass(self, seconds: int) -> None:
        self.bench.rows.pass_time(seconds)
        self.model.now += seconds
        if self.bench.compat:
            for held in self.held:
                lease = held.claim.lease
                held.claim = Claim(held.claim.row, lease._replace(fence=lease.fence - seconds))

    @rule()
    def look(self) -> None:
        for key in KEYS:
            row, expected = self.stores["three"].get(key), self.model.rows.get(key)
            assert (row is None) == (expected is None)
            if row is not None and expected is not None:
                assert row.next_time == expected.occurrence
                assert abs(row.next_run_time - self.stored(expected.due)) < APART

    def teardown(self) -> None:
        for row in list(self.stores["one"].list()):
            self.stores["one"].delete(row.key)

    def lease(self, alive_time: int) -> int:
        """Return a lease's seconds, chosen so that nothing else is due, and no other lease ends, in the same second.

        A fence that is a due time in whole seconds cannot distinguish leases that end in the same second.
        """
        return alive_time + next(self.leases)

    def holds(self, held: Held) -> bool:
        return self.model.holds(held.claim.row.key, held.grant)

    def stored(self, moment: float) -> float:
        """Return the due time in unix seconds for a time of the model."""
        return int(self.start + moment - self.model.now)

    def settle(self, held: Held, call: Callable[[], object], wait: float, following: int | None = None) -> None:
        """Settle. This must succeed if this claim holds the row, and must be refused otherwise."""
        if self.holds(held):
            call()
            self.model.settle(held.claim.row.key, self.model.now + wait, following)
        else:
            with pytest.raises((*LOST, NotFoundError)):
                call()


def explore(bench: Bench, start: int | None = None, phases: Collection[Phase] = tuple(Phase)) -> None:
    """Try sequences of calls, and raise the error of the shortest wrong one. `start`: the seed."""
    stores = {name: bench.open() for name in ("one", "two", "three")}

    def machine() -> Leases:
        return Leases(bench, stores)

    run_state_machine_as_test(
        machine if start is None else seed(start)(machine),  # type: ignore[arg-type] # whatever makes one
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_every_sequence_of_verbs_ends_as_the_model_says(bench: Bench) -> None:
    explore(bench)


@on_these
def test_a_broken_fence_is_found(bench: Bench) -> None:
    with unfenced_scripts(), rewritten(FENCE):
        assert finds_a_fault(bench)


@pytest.mark.parametrize("bare", [("rdb_compat", "sqlite"), ("rdb", "mariadb")], indirect=True, ids="-".join)
def test_a_broken_row_count_check_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """On other stores a single statement settles the row, and returns the number of rows."""
    execute = Statement.execute

    def execute_as_if_one_row(self: Statement, connection: sa.Connection, values: Mapping[str, Any]) -> int:
        execute(self, connection, values)
        return 1

    monkeypatch.setattr(sa.CursorResult, "rowcount", property(lambda result: 1))
    monkeypatch.setattr(Statement, "execute", execute_as_if_one_row)
    assert finds_a_fault(bench)


@on_these
def test_a_clock_that_is_not_the_database_s_is_found(bench: Bench) -> None:
    with an_hour_ahead():
        assert finds_a_fault(bench)


def finds_a_fault(bench: Bench) -> bool:
    """Return whether any sequence finds a fault. The shortest one is not needed."""
    for start in range(SEEDS):
        try:
            explore(bench, start, [Phase.generate])
        except (AssertionError, pytest.fail.Exception, ScheduleError, Flaky):
            return True
    return False


@contextmanager
def an_hour_ahead() -> Iterator[None]:
    """Let statements that write leases use a clock that is an hour ahead."""
    compose = script_composer.compose

    def ahead(kind: str, verb: str) -> Script:
        script, time = compose(kind, verb), "local time = call('TIME')"
        assert time in script.text
        wrong = f"{time}\ntime[1] = time[1] + 3600" if verb == "acquire" else time
        return replace(script, text=script.text.replace(time, wrong))

    def rewrite(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> tuple[str, Any]:
        for clock, later in CLOCKS.items() if statement.lstrip().startswith(("UPDATE", "WITH")) else ():
            statement = statement.replace(clock, later)
        return statement, parameters

    sa.event.listen(sa.Engine, "before_cursor_execute", rewrite, retval=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script_composer, "compose", ahead)
        try:
            yield
        finally:
            sa.event.remove(sa.Engine, "before_cursor_execute", rewrite)
