"""Output of runs: the output of a schedule's last runs can be stored, and no output is stored for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from psched.model import Claim
from psched.store import ScheduleStore
from psched.store.ledger import KEPT_OUTPUTS, Ledger, Output
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, soon
from tests.stores.statements import watched
from tests.stores.test_plans import see_that_few_rows_were_read, stop_analysing

LONG = 1e6


def claims(bench: Bench, store: ScheduleStore, key: str, count: int) -> Iterator[Claim]:
    """Yield the claims of `count` runs of a schedule, one after another, each at its first attempt."""
    for n in range(count):
        claim = bench.take(store, key)
        yield claim
        store.advance(claim, LONG_AGO + n + 1, LONG_AGO + n + 1, soon())


def keep(ledger: Ledger, claim: Claim, text: str, retention: float = LONG) -> None:
    ledger.keep_output(claim, Output(text, "ended", False), retention)


def texts(ledger: Ledger, key: str = "key") -> list[str]:
    return [output.text for output in ledger.outputs(key)]


def test_an_output_is_kept_with_its_run_and_how_that_ended(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "key")
    before = store.now()
    claim = bench.take(store, "key")
    ledger.keep_output(claim, Output("first\nlast \N{SLEEPING FACE}", "ended with exit status 1", True), LONG)
    [output] = ledger.outputs("key")
    assert (output.key, output.scheduled_time, output.attempt) == ("key", LONG_AGO, 1)
    assert (output.text, output.result) == ("first\nlast \N{SLEEPING FACE}", "ended with exit status 1")
    assert output.failed
    assert before - 0.001 <= output.ended <= store.now()


def test_each_attempt_has_an_output_of_its_own(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "key")
    first = bench.take(store, "key")
    keep(ledger, first, "failed")
    store.retry(first.lease, 0, "error", soon())
    second = bench.take(store, "key")
    keep(ledger, second, "well")
    store.advance(second, FAR_OFF, FAR_OFF, soon())
    assert [(output.attempt, output.text) for output in ledger.outputs("key")] == [(1, "failed"), (2, "well")]


def test_text_that_a_database_refuses_is_kept_all_the_same(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "key")
    keep(ledger, bench.take(store, "key"), "a\0b\ud800c" + "x" * 9000)
    [text] = texts(ledger)
    assert len(text) == 9005
    assert (text[0], text[2], text[4:7]) == ("a", "b", "cxx")


def test_of_each_schedule_the_last_runs_are_kept(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "other")
    keep(ledger, bench.take(store, "other"), "of another")
    bench.add(store, "key")
    for n, claim in enumerate(claims(bench, store, "key", KEPT_OUTPUTS + 3)):
        keep(ledger, claim, str(n))
    assert texts(ledger) == [str(n) for n in range(3, KEPT_OUTPUTS + 3)]
    assert texts(ledger, "other") == ["of another"]


def test_a_call_without_an_answer_may_be_repeated(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    keep(ledger, claim, "once")
    keep(ledger, claim, "again")
    assert texts(ledger) == ["again"]


def test_an_output_is_deleted_when_its_time_is_over(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    for key in ("key", "other", "third"):
        bench.add(store, key)
        keep(ledger, bench.take(store, key), key, 0 if key != "other" else LONG)
    deadline = time.monotonic() + 10
    while texts(ledger) + texts(ledger, "third"):
        assert time.monotonic() < deadline
        ledger.trim(LONG, 1000, 1, None)
        time.sleep(0.01)
    assert texts(ledger, "other") == ["other"]


@pytest.mark.new_table
def test_no_statement_reads_the_outputs_of_other_schedules(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    stop_analysing(bench)
    for n in range(40):
        bench.add(store, f"key{n}")
        claim = bench.take(store, f"key{n}")
        for attempt in range(5):
            lease = claim.lease._replace(fence=claim.lease.fence + attempt)
            keep(ledger, claim._replace(lease=lease), "output")
    last = claim._replace(lease=claim.lease._replace(fence=claim.lease.fence + 5))
    for verb in (
        lambda: keep(ledger, last, "output"),
        lambda: ledger.outputs("key7"),
        lambda: ledger.trim(LONG, 1000, 10, None),
    ):
        with watched(bench) as watch:
            verb()
        see_that_few_rows_were_read(watch)
