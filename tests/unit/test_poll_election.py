"""Who of several children keeps watch. With a clock of the test's own."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from psched.process.poll_election import ElectionMember, PollElection, open_election

INTERVAL = 1.0


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Siblings:
    """The seats of four children in one section, and their clock."""

    def __init__(self, watch: PollElection) -> None:
        self.watch = watch
        self.clock = Hands()
        self.members = [self.sit(slot) for slot in (1, 2, 3, 4)]

    def sit(self, slot: int) -> ElectionMember:
        """Return the seat of a newborn child."""
        return ElectionMember(self.watch, slot, "queue", INTERVAL, self.clock)

    def rest(self, *slots: int) -> list[float | None]:
        """Let these stand by, if there is somebody to rely on."""
        return [self.members[slot - 1].defer() for slot in slots]


@pytest.fixture
def siblings() -> Iterator[Siblings]:
    watch = open_election(4, ("schedules", "queue"))
    if watch is None:
        pytest.skip("this system has no eventfd")
    yield Siblings(watch)
    watch.close()


def test_while_one_keeps_watch_the_others_rest(siblings: Siblings) -> None:
    first, *_ = siblings.members
    assert siblings.rest(1, 2, 3, 4) == [None] * 4
    for _ in range(10):
        first.lead()
        assert all(siblings.rest(2, 3, 4))
        assert siblings.rest(1) == [None]
        assert INTERVAL < first.pause() < 1.3 * INTERVAL
        siblings.clock.time += first.pause()


def test_a_keeper_that_is_silent_is_replaced_within_two_intervals_by_one_of_them(siblings: Siblings) -> None:
    siblings.members[0].lead()
    rests = [rest for rest in siblings.rest(2, 3, 4) if rest is not None]
    assert len(set(rests)) == 3
    assert 1.5 * INTERVAL < rests[0] <= 2 * INTERVAL
    assert min(rests[1:]) > 5 * INTERVAL
    siblings.clock.time += rests[0]
    assert siblings.rest(2) == [None]
    siblings.members[1].lead()
    assert all(siblings.rest(3, 4))


def test_where_the_guard_is_not_there_any_more_the_next_who_wakes_becomes_it(siblings: Siblings) -> None:
    first, *_ = siblings.members
    first.lead()
    siblings.rest(2)
    (rest,) = siblings.rest(3)
    assert rest is not None
    assert rest <= 10 * INTERVAL
    siblings.members[1].leave()
    siblings.clock.time += rest
    first.lead()
    (rest,) = siblings.rest(3)
    assert rest is not None
    assert rest <= 2 * INTERVAL


def test_what_a_dead_keeper_has_kept_is_left_to_one_who_is_called_at_once(siblings: Siblings) -> None:
    siblings.members[0].lead()
    siblings.rest(2, 3)
    siblings.watch.remove(1)
    assert [member.wake_reason() for member in siblings.members[1:]] == ["lead", None, None]
    assert siblings.rest(2) == [None]
    siblings.watch.remove(3)
    siblings.watch.remove(4)
    assert [member.wake_reason() for member in siblings.members] == [None] * 4


def test_a_call_that_was_heard_and_not_answered_is_passed_on(siblings: Siblings) -> None:
    first, second, *_ = siblings.members
    for answer in (second.lead, second.found_rows, second.defer, lambda: None):
        first.lead()
        siblings.rest(2, 3)
        first.leave()
        assert second.wake_reason() == "lead"
        if answer == second.defer:
            first.lead()
        answer()
        if answer != second.lead:
            second.leave()
            assert siblings.members[2].wake_reason() == (
                None if answer in (second.found_rows, second.defer) else "lead"
            )


def test_of_two_who_keep_watch_one_steps_down(siblings: Siblings) -> None:
    for member in siblings.members[1:3]:
        member.lead()
    assert siblings.rest(2) == [None]
    assert siblings.rest(3) != [None]
    assert siblings.members[2].pause() == float("inf")


def test_a_keeper_that_has_something_to_run_calls_one_to_the_watch(siblings: Siblings) -> None:
    siblings.members[0].lead()
    siblings.rest(2, 3, 4)
    siblings.members[0].leave()
    assert [member.wake_reason() for member in siblings.members] == [None, "lead", None, None]
    assert siblings.rest(2) == [None]


def test_who_has_run_something_tells_the_keeper_to_look_again(siblings: Siblings) -> None:
    siblings.members[1].lead()
    siblings.members[2].defer()
    assert siblings.members[1].wake_reason() is None
    siblings.members[3].defer(news=True)
    assert [member.wake_reason() for member in siblings.members] == [None, "lead", None, None]


def test_who_is_about_to_rest_looks_himself_when_the_keeper_leaves_at_this_moment(siblings: Siblings) -> None:
    first, second, *_ = siblings.members
    first.lead()
    write = siblings.watch.write

    def leave_meanwhile(member: int, term: float) -> None:
        siblings.watch.write = write  # type: ignore[method-assign]
        first.leave()
        write(member, term)

    siblings.watch.write = leave_meanwhile  # type: ignore[method-assign]
    assert second.defer() is None


def test_a_file_that_a_handler_has_opened_in_place_of_a_bell_is_left_alone(siblings: Siblings, tmp_path: Path) -> None:
    first, second, *_ = siblings.members
    first.lead()
    second.defer()
    wakeup = second.descriptor
    assert wakeup is not None
    file = tmp_path / "file"
    file.write_bytes(bytes(7) + b"\1")
    with file.open("r+b") as opened:
        os.dup2(opened.fileno(), wakeup)
        first.leave()
        assert second.wake_reason() is None
        assert second.descriptor is None
        assert opened.tell() == 0
    assert file.read_bytes() == bytes(7) + b"\1"
    os.close(wakeup)


def test_where_there_may_be_more_than_was_taken_others_are_called_for_it_the_keeper_too(siblings: Siblings) -> None:
    siblings.members[0].leave(batch=1)  # the first time all are woken
    siblings.members[1].lead()
    siblings.rest(3, 4)
    siblings.members[0].leave(batch=1)
    assert [member.wake_reason() for member in siblings.members] == [
        None,
        "work",
        "work",
        None,
    ]
    siblings.members[0].leave(batch=500)
    assert [member.wake_reason() for member in siblings.members] == [None, *["work"] * 3]


def test_the_first_full_batch_wakes_all(siblings: Siblings) -> None:
    siblings.members[0].lead()
    siblings.rest(2, 3, 4)
    siblings.members[0].leave(batch=1)
    assert [member.wake_reason() for member in siblings.members] == [None, *["work"] * 3]


def test_a_sibling_that_has_found_no_leader_can_be_woken_while_it_starts(siblings: Siblings) -> None:
    first, second, *_ = siblings.members
    assert second.defer() is None
    assert not first.has_idle_sibling()
    second.stand_by(1.0)
    assert first.has_idle_sibling()
    first.leave(batch=1)
    assert second.wake_reason() == "work"


def test_before_something_is_due_one_is_called_to_be_ready_and_goes_on_resting(siblings: Siblings) -> None:
    first, *_ = siblings.members
    first.lead()
    siblings.rest(2, 3)
    first.wake_sibling()
    first.wake_sibling()
    assert [member.wake_reason() for member in siblings.members] == [None, "lead", None, None]
    assert all(siblings.rest(2))
    first.leave()
    assert siblings.members[1].wake_reason() == "lead"


def test_who_runs_something_is_not_called(siblings: Siblings) -> None:
    siblings.members[0].lead()
    siblings.rest(2, 3)
    siblings.members[1].leave()
    siblings.members[0].leave()
    assert [member.wake_reason() for member in siblings.members] == [None, None, "lead", None]


def test_a_call_that_comes_too_late_is_passed_on(siblings: Siblings) -> None:
    siblings.members[0].lead()
    siblings.rest(2, 3)
    siblings.members[0].leave()
    siblings.members[1].leave()
    assert siblings.members[2].wake_reason() == "lead"


def test_who_is_frozen_is_not_called(siblings: Siblings) -> None:
    siblings.members[0].lead()
    siblings.rest(2)
    siblings.clock.time += 2 * INTERVAL
    siblings.members[0].lead()
    siblings.rest(3)
    siblings.members[0].leave()
    assert [member.wake_reason() for member in siblings.members] == [None, None, "lead", None]


def test_a_newborn_child_does_not_speak_for_its_predecessor(siblings: Siblings) -> None:
    siblings.members[0].lead()
    siblings.members[0] = siblings.sit(1)
    assert siblings.rest(2) == [None]
    assert not siblings.members[0].participates


def test_what_cannot_be_a_word_of_a_child_is_not_relied_on(siblings: Siblings) -> None:
    own, _ = siblings.watch.place(1, "queue")
    for nonsense in (float("nan"), float("inf"), 1e300, siblings.clock.time + 100):
        siblings.watch.write(own, nonsense)
        assert siblings.rest(2) == [None]


def test_sections_are_watched_apart(siblings: Siblings) -> None:
    ElectionMember(siblings.watch, 1, "schedules", INTERVAL, siblings.clock).lead()
    assert siblings.rest(2) == [None]


def test_one_child_has_nobody_to_share_a_watch_with() -> None:
    assert open_election(1, ("queue",)) is None


def test_a_watch_leaves_the_children_their_descriptors(siblings: Siblings) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, most[1]))
        assert open_election(129, ("schedules", "queue")) is None
        watch = open_election(128, ("schedules", "queue"))
        assert watch is not None
        watch.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
