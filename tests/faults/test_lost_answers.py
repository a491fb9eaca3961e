"""Each statement of each method takes effect once, although its request or its answer is lost.

The statements of a method are not listed here, but recorded in a rehearsal, so that none is forgotten when they change.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest
import sqlalchemy as sa

from faultlab.proxy import Proxy, Trap
from faultlab.servers import Server
from psched.errors import AlreadyExistsError, NotFoundError
from psched.model import Claim
from psched.store import ScheduleStore
from psched.store.ledger import LedgerFilter, Step
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, eventually, keys_of, new_row, soon, unless_away
from tests.stores.sent_statements import before_each


@dataclass
class Scene:
    """One row for the call of a method.

    The store `far` reaches the database through the proxy, and `near` without it.
    """

    bench: Bench
    far: ScheduleStore
    near: ScheduleStore
    key: str

    def take(self) -> Claim:
        self.bench.add(self.near, self.key)
        return self.bench.take(self.far, self.key)


Verb = Callable[[Scene], Iterator[None]]
"""Prepares a row; yields, so that a trap can be set; calls the method; yields, so that the trap can go; checks the row.
"""


def add(scene: Scene) -> Iterator[None]:
    yield
    scene.bench.add(scene.far, scene.key, data={"mine": 1})
    yield
    row = scene.near.get(scene.key)
    assert row is not None
    assert row.data == {"mine": 1}
    with pytest.raises(AlreadyExistsError):
        scene.bench.add(scene.far, scene.key, data={"mine": 1})


def add_what_exists(scene: Scene) -> Iterator[None]:
    scene.bench.add(scene.near, scene.key, data={"theirs": 1})
    yield
    with pytest.raises(AlreadyExistsError):
        scene.bench.add(scene.far, scene.key, data={"mine": 1})
    yield
    row = scene.near.get(scene.key)
    assert row is not None
    assert row.data == {"theirs": 1}


def add_many(scene: Scene) -> Iterator[None]:
    keys = [f"{scene.key}{part}" for part in ("-a", "-old", "-z")]
    scene.bench.add(scene.near, keys[1], data={"theirs": 1})
    yield
    assert scene.far.add_many([new_row(key, {"mine": 1}) for key in keys]) == [keys[1]]
    yield
    rows = [scene.near.get(key) for key in keys]
    assert [row and row.data for row in rows] == [{"mine": 1}, {"theirs": 1}, {"mine": 1}]
    ledger = scene.near.ledger
    assert ledger is None or [len(ledger.changes(key)) for key in keys] == [1, 1, 1]


def acquire(scene: Scene) -> Iterator[None]:
    scene.bench.add(scene.near, scene.key)
    yield
    claims = polled(scene)
    yield
    if claims:
        assert scene.near.acquire(1, 100) == []
    else:  # the call gave up, or the store does not know its own: then the lease ends by itself
        claims = eventually(lambda: polled(scene))
    assert keys_of(claims) == [scene.key]
    assert scene.far.advance(claims[0], FAR_OFF, FAR_OFF, soon()) is None
    stands_at(scene, FAR_OFF, FAR_OFF)


def polled(scene: Scene) -> list[Claim]:
    alive_time = scene.bench.lease if scene.bench.compat else 100
    return unless_away(scene.far, lambda: scene.far.acquire(1, alive_time)) or []


def extend(scene: Scene) -> Iterator[None]:
    claim = scene.take()
    yield
    leases = unless_away(scene.far, lambda: scene.far.extend([claim.lease], 200))
    if leases is None:
        leases = scene.far.extend([claim.lease], 200)
    yield
    (lease,) = leases
    assert lease is not None, "after an unanswered renewal both the old and the new fence are ours"
    assert scene.near.acquire(1, 100) == []
    assert scene.far.advance(Claim(claim.row, lease), FAR_OFF, FAR_OFF, soon()) is None


def settle_after_a_lost_renewal(scene: Scene) -> Iterator[None]:
    claim = scene.take()
    yield
    (lease,) = unless_away(scene.far, lambda: scene.far.extend([claim.lease], 200)) or [claim.lease]
    assert lease is not None
    yield
    assert scene.far.advance(Claim(claim.row, lease), FAR_OFF, FAR_OFF, soon()) is None
    stands_at(scene, FAR_OFF, FAR_OFF)


def release(scene: Scene) -> Iterator[None]:
    claim = scene.take()
    yield
    scene.far.release(claim.lease, soon())
    yield
    assert keys_of(scene.near.acquire(1, 100)) == [scene.key]


def retry(scene: Scene) -> Iterator[None]:
    claim = scene.take()
    before = scene.near.now()
    yield
    scene.far.retry(claim.lease, 50, "error", soon())
    yield
    row = scene.near.get(scene.key)
    assert row is not None
    assert before + 50 <= row.next_run_time + 0.001 <= scene.near.now() + 51
    assert row.next_time == LONG_AGO


def advance(scene: Scene) -> Iterator[None]:
    claim = scene.take()
    yield
    assert scene.far.advance(claim, LONG_AGO + 60, LONG_AGO + 60, soon()) is None
    yield
    stands_at(scene, LONG_AGO + 60, LONG_AGO + 60)
    assert scene.bench.take(scene.near, scene.key).row.scheduled_time == LONG_AGO + 60


def advance_many(scene: Scene) -> Iterator[None]:
    claim = scene.take()
    yield
    assert scene.far.advance_many([Step(claim, LONG_AGO + 60, LONG_AGO + 60)], soon()) == [None]
    yield
    stands_at(scene, LONG_AGO + 60, LONG_AGO + 60)
    if scene.near.ledger is not None:
        assert len(list(scene.near.ledger.rows(LedgerFilter(key=scene.key)))) == 1


def stands_at(scene: Scene, next_time: int, due: float) -> None:
    row = scene.near.get(scene.key)
    assert row is not None
    assert (row.next_time, row.next_run_time) == (next_time, due)


VERBS: list[Verb] = [
    add, add_what_exists, add_many, acquire, extend, settle_after_a_lost_renewal, release, retry, advance,
    advance_many,
]  # fmt: skip
LOSSES: list[Callable[[Proxy, bytes], Trap]] = [Proxy.lose_request, Proxy.lose_answer]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_a_lost_statement_is_done_once(server: Server, bench: Bench, verb: Verb) -> None:
    near = bench.open()
    statements = rehearse(server, bench, near, verb)
    assert statements
    for (number, statement), lose in itertools.product(enumerate(statements), LOSSES):
        with Proxy(server.port) as proxy, scene_through(proxy, bench, near, f"{lose.__name__}{number}") as scene:
            steps = verb(scene)
            next(steps)
            trap = lose(proxy, statement)
            next(steps)
            assert trap.sprung, f"{statement!r} did not pass: {lose.__name__}"
            next(steps, None)


def rehearse(server: Server, bench: Bench, near: ScheduleStore, verb: Verb) -> list[bytes]:
    """Return the constant beginning of each statement that the method sends, in order."""
    seen: list[bytes] = []

    def note(statement: str) -> None:
        fixed = statement.partition("%")[0]
        if bench.database == "redis":  # the script's digest; its text follows when the server does not know it yet
            fixed = statement.split()[1]
        if fixed.encode() not in seen and not statement.startswith("EVAL "):
            seen.append(fixed.encode())

    with Proxy(server.port) as proxy, scene_through(proxy, bench, near, "rehearsal") as scene:
        steps = verb(scene)
        next(steps)
        with before_each(note):
            next(steps)
        next(steps, None)
    return seen


@contextmanager
def scene_through(proxy: Proxy, bench: Bench, near: ScheduleStore, key: str) -> Iterator[Scene]:
    """Yield a scene whose far store is already connected. At the end delete the scene's row."""
    url = sa.make_url(bench.url).set(port=proxy.port).render_as_string(hide_password=False)
    scene = Scene(bench, bench.open(url=url), near, key)
    scene.far.now()
    try:
        yield scene
    finally:
        with suppress(NotFoundError):
            near.delete(key)
        scene.far.close()


@pytest.mark.parametrize("next_verb", ["extend", "advance"])
def test_after_a_renewal_that_was_never_answered_the_old_lease_is_ours(
    server: Server, bench: Bench, next_verb: str
) -> None:
    near = bench.open()
    last = rehearse(server, bench, near, extend)[-1]
    with Proxy(server.port) as proxy, scene_through(proxy, bench, near, "key") as scene:
        claim = scene.take()
        trap = proxy.lose_answer(last)
        proxy.refuse()
        assert unless_away(scene.far, lambda: scene.far.extend([claim.lease], 200)) is None
        assert trap.sprung
        proxy.pass_on()
        if next_verb == "extend":
            assert scene.far.extend([claim.lease], 300) != [None]
            assert scene.near.acquire(1, 100) == []
        else:
            assert scene.far.advance(claim, FAR_OFF, FAR_OFF, soon()) is None
            stands_at(scene, FAR_OFF, FAR_OFF)
