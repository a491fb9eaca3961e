"""The arithmetic of the fair order between users."""

from __future__ import annotations

from collections import Counter

from psched.backends.rdb.waiting_users import WaitingUser, turns


def test_each_task_goes_to_the_greatest_weight() -> None:
    a, b = WaitingUser("a", 0, 0, 2), WaitingUser("b", 5, 1, 8)
    assert turns([a, b], 1) == ["b"]  # 8/2 against 2/1
    assert turns([a, b], 4) == ["b", "b", "a", "b"]
    assert turns([a, b], 100) == ["b", "b", "a", "b"]


def test_at_equal_weights_the_longest_wait_comes_first() -> None:
    assert turns([WaitingUser("a", 7, 0, None), WaitingUser("b", 5, 0, None)], 1) == ["b"]


def test_nobody_gets_more_than_may_run() -> None:
    assert turns([WaitingUser("a", 0, 3, 3), WaitingUser("b", 0, 2, 3)], 9) == ["b"]
    assert turns([], 9) == []


def test_half_of_what_is_free_is_left_to_other_workers() -> None:
    for free, taken in ((0, 0), (1, 1), (2, 1), (3, 1), (4, 2), (9, 4), (10, 5)):
        some = WaitingUser("a", 0, 20 - free, 20)
        assert turns([some], 99) == ["a"] * taken
        assert some.took(taken).room == 0, "the next round gave it more"
    assert WaitingUser("a", 0, 10, 20).took(2).room == 3


def test_users_without_limit_share_evenly() -> None:
    given = turns([WaitingUser(user, 0, 0, None) for user in "abc"], 300)
    assert Counter(given) == {"a": 100, "b": 100, "c": 100}


def test_the_first_ones_have_one_task_each_before_all_others() -> None:
    some = [
        WaitingUser("a", 0, 0, 9),
        WaitingUser("b", 1, 5, None),
        WaitingUser("c", 2, 3, 4),
        WaitingUser("d", 3, 3, 3),
    ]
    assert turns(some, 5, ["c", "d", "b", "gone"]) == ["c", "b", "a", "a", "a"]
    assert turns(some, 1, ["c", "b"]) == ["c"]
