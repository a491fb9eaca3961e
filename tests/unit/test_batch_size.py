"""The number of rows in an acquire depends on how long the handlers of each type take. The test computes the time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched.execution.batch_size import TOO_LONG, AdaptiveBatchSizer, BatchSizer, batch_sizer_for

QUICK, SLOW, HOURS = 0.0001, 2.0, 10_000.0


@dataclass
class Worker:
    """Runs an endless stream of types like a handler loop, each for its duration, and counts."""

    durations: dict[str, float]
    prefetch: AdaptiveBatchSizer = field(default_factory=AdaptiveBatchSizer)
    batches: list[list[str]] = field(default_factory=list)
    given_back: int = 0
    longest_wait: float = 0.0

    def work(self, stream: Iterator[str], batches: int) -> None:
        """Take `batches` batches from the stream. Tasks that it releases are for other workers."""
        for _ in range(batches):
            taken = [next(stream) for _ in range(self.prefetch.limit())]
            kept = taken[: self.prefetch.keep(taken)]
            self.given_back += len(taken) - len(kept)
            self.batches.append(kept)
            self._run(kept)

    def _run(self, types: list[str]) -> None:
        waited = 0.0
        for type_ in types:
            self.longest_wait = max(self.longest_wait, waited)
            self.prefetch.observe_run(type_, self.durations[type_])
            waited += self.durations[type_]


def stream_of(weights: dict[str, float], seed: int = 1) -> Iterator[str]:
    chance = random.Random(seed)
    while True:
        yield from chance.choices(list(weights), list(weights.values()), k=500)


def test_nothing_is_prefetched_while_durations_are_unknown() -> None:
    prefetch = AdaptiveBatchSizer()
    assert [prefetch.limit() for _ in range(3)] == [1, 1, 1]


def test_quick_handlers_get_large_batches_step_by_step() -> None:
    worker = Worker({"t": QUICK})
    worker.work(stream_of({"t": 1}), 12)
    sizes = [len(batch) for batch in worker.batches]
    assert sizes == sorted(sizes)
    assert sizes[1] <= 4
    assert sizes[-1] == 500
    assert worker.given_back == 0


def test_after_a_rest_a_batch_is_small_again_and_grows_fast() -> None:
    worker = Worker({"t": QUICK})
    worker.work(stream_of({"t": 1}), 12)
    assert worker.prefetch.limit() > 100
    worker.prefetch.limit()  # nothing came, and so nothing was run
    worker.work(stream_of({"t": 1}), 4)
    assert [len(batch) for batch in worker.batches[12:]] == [32, 128, 500, 500]


def test_batches_are_larger_while_they_come_full() -> None:
    prefetch = AdaptiveBatchSizer()
    prefetch.observe_run("t", 0.02)
    for size in (2, 4, 8, 16, 20, 20):
        assert prefetch.limit() == size
        for _ in range(size):
            prefetch.observe_run("t", 0.02)
    assert prefetch.limit() == 20
    prefetch.observe_run("t", 0.02)
    assert prefetch.limit() == 1


def test_slow_handlers_run_one_at_a_time() -> None:
    worker = Worker({"t": SLOW})
    worker.work(stream_of({"t": 1}), 50)
    assert [len(batch) for batch in worker.batches] == [1] * 50
    assert worker.given_back == 0


def test_what_is_behind_a_slow_one_is_given_back_before_it_begins() -> None:
    worker = Worker({"quick": QUICK, "hours": HOURS})
    worker.work(iter(["hours"]), 1)
    worker.work(stream_of({"quick": 1}), 12)
    batch = ["quick"] * 20 + ["hours"] + ["quick"] * 479
    assert worker.prefetch.keep(batch) == 21
    assert worker.prefetch.keep(["hours", *batch]) == 1


def test_quick_ones_among_slow_ones_still_come_in_batches() -> None:
    worker = Worker({"quick": QUICK, "slow": SLOW})
    worker.work(stream_of({"quick": 0.97, "slow": 0.03}), 400)
    late = worker.batches[100:]
    assert sum(map(len, late)) / len(late) >= 8
    slow = sum(batch.count("slow") for batch in worker.batches)
    assert worker.given_back <= 60 * slow


def test_nobody_waits_for_a_type_that_is_known_to_be_slow() -> None:
    worker = Worker({"quick": QUICK, "slow": SLOW})
    worker.work(iter(["slow"]), 1)
    worker.work(stream_of({"quick": 0.9, "slow": 0.1}), 300)
    assert worker.longest_wait <= TOO_LONG


def test_a_type_that_turns_slow_makes_the_next_batch_small() -> None:
    worker = Worker({"t": QUICK})
    worker.work(stream_of({"t": 1}), 12)
    worker.prefetch.observe_run("t", 30.0)
    assert worker.prefetch.limit() == 1
    assert worker.prefetch.keep(["t"] * 400) == 1


def test_a_hiccup_is_forgotten_soon() -> None:
    worker = Worker({"t": QUICK})
    worker.work(stream_of({"t": 1}), 12)
    worker.prefetch.observe_run("t", 1.0)
    worker.work(stream_of({"t": 1}), 12)
    assert len(worker.batches[-1]) == 500
    assert worker.given_back <= 20


def test_slow_acquires_become_fewer_but_nobody_waits_for_much_longer_than_a_second() -> None:
    worker = Worker({"t": 0.01})
    worker.work(stream_of({"t": 1}), 10)
    assert len(worker.batches[-1]) == 40
    for _ in range(10):
        worker.prefetch.observe_poll(0.02)
    worker.work(stream_of({"t": 1}), 3)
    assert 70 <= len(worker.batches[-1]) <= 80
    for _ in range(10):
        worker.prefetch.observe_poll(0.5)
    worker.work(stream_of({"t": 1}), 3)
    assert len(worker.batches[-1]) == 100
    assert worker.given_back == 0
    for _ in range(20):
        worker.prefetch.observe_poll(0.001)
    worker.work(stream_of({"t": 1}), 3)
    assert len(worker.batches[-1]) == 40


def test_types_that_never_come_again_do_not_hold_up_a_quick_stream() -> None:
    names = [f"t{n}" for n in range(20_000)]
    worker = Worker(dict.fromkeys(names, QUICK))
    worker.work(iter(names), 20)
    assert len(worker.batches[-1]) == 500
    assert len(worker.prefetch._durations) <= 1000


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.floats(1e-5, 5000), min_size=1),
    st.integers(0, 2**32),
)
def test_whatever_runs_a_batch_has_bounds_and_nobody_known_waits_long(durations: dict[str, float], seed: int) -> None:
    worker = Worker(durations)
    for type_, seconds in durations.items():
        worker.prefetch.observe_run(type_, seconds)
    worker.work(stream_of(dict.fromkeys(durations, 1.0), seed), 40)
    assert all(1 <= len(batch) <= 500 for batch in worker.batches)
    assert worker.longest_wait <= TOO_LONG + max((d for d in durations.values() if d <= TOO_LONG), default=0.0) + 1e-9


@given(st.floats(1e-5, 0.01), st.floats(1.0, 1e5), st.integers(0, 2**32))
def test_slow_ones_never_starve_quick_ones_of_batches(quick: float, slow: float, seed: int) -> None:
    worker = Worker({"quick": quick, "slow": slow})
    worker.work(stream_of({"quick": 0.95, "slow": 0.05}, seed), 300)
    assert sum(map(len, worker.batches[100:])) / 200 >= 3


@pytest.mark.parametrize("number", [1, 7])
def test_a_fixed_number_stays_and_counts_the_tasks_beside_the_running_one(number: int) -> None:
    prefetch = batch_sizer_for(number - 1)
    assert isinstance(prefetch, BatchSizer)
    prefetch.observe_run("t", 30.0)
    prefetch.observe_poll(30.0)
    assert prefetch.limit() == number
    assert prefetch.keep(["t"] * number) == number


def test_auto_learns_anew_for_every_poller() -> None:
    assert batch_sizer_for("auto") is not batch_sizer_for("auto")


def test_slow_ones_run_one_at_a_time_though_acquiring_takes_long() -> None:
    worker = Worker({"t": 0.6})
    worker.work(stream_of({"t": 1}), 10)
    for _ in range(10):
        worker.prefetch.observe_poll(0.025)
    worker.prefetch.limit()
    assert worker.prefetch.keep(["t", "t", "t"]) == 1


def test_runs_that_are_reported_together_count_as_so_many_runs() -> None:
    together, apart = BatchSizer(1), BatchSizer(1)
    for sizer in (together, apart):
        sizer.observe_run("a", 1.0)
    together.observe_run("a", 0.1, 5)
    for _ in range(5):
        apart.observe_run("a", 0.1)
    assert together.expected("a") == pytest.approx(apart.expected("a"))
