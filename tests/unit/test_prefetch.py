"""How many rows are taken at a time follows how long the handlers take."""

from __future__ import annotations

from psched.daemon.prefetch import AdaptivePrefetch, FixedPrefetch, prefetch_for


def test_nothing_is_taken_ahead_while_durations_are_unknown() -> None:
    prefetch = AdaptivePrefetch()
    assert [prefetch.limit() for _ in range(3)] == [1, 1, 1]


def test_quick_handlers_get_large_batches_step_by_step() -> None:
    prefetch = AdaptivePrefetch()
    sizes = []
    for _ in range(10):
        for _ in range(prefetch.limit()):
            prefetch.note(0.0001)
        sizes.append(prefetch.limit())
    assert sizes == sorted(sizes)
    assert sizes[0] <= 4
    assert sizes[-1] == 500


def test_one_slow_run_shrinks_the_batch_to_one_at_once() -> None:
    prefetch = AdaptivePrefetch()
    for _ in range(100):
        prefetch.limit()
        prefetch.note(0.0001)
    prefetch.note(30.0)
    assert prefetch.limit() == 1


def test_a_fixed_number_stays() -> None:
    prefetch = prefetch_for(7)()
    assert isinstance(prefetch, FixedPrefetch)
    prefetch.note(30.0)
    assert prefetch.limit() == 7


def test_auto_learns_anew_for_every_lane() -> None:
    make = prefetch_for("auto")
    assert make() is not make()
