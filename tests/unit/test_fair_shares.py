"""The fair order between users, as arithmetic."""

from __future__ import annotations

from collections import Counter

from psched.backends.rdb.user_candidates import Candidate, turns


def test_each_task_goes_to_the_greatest_weight() -> None:
    a, b = Candidate("a", 0, 0, 2), Candidate("b", 5, 1, 8)
    assert turns([a, b], 1) == ["b"]  # 8/2 against 2/1
    assert turns([a, b], 4) == ["b", "b", "a", "b"]
    assert turns([a, b], 100) == ["b", "b", "a", "b"]


def test_at_equal_weights_the_longest_wait_comes_first() -> None:
    assert turns([Candidate("a", 7, 0, None), Candidate("b", 5, 0, None)], 1) == ["b"]


def test_nobody_gets_more_than_may_run() -> None:
    assert turns([Candidate("a", 0, 3, 3), Candidate("b", 0, 2, 3)], 9) == ["b"]
    assert turns([], 9) == []


def test_half_of_what_is_free_is_left_to_other_workers() -> None:
    for free, taken in ((0, 0), (1, 1), (2, 1), (3, 1), (4, 2), (9, 4), (10, 5)):
        some = Candidate("a", 0, 20 - free, 20)
        assert turns([some], 99) == ["a"] * taken
        assert some.took(taken).room == 0, "the next round gave it more"
    assert Candidate("a", 0, 10, 20).took(2).room == 3


def test_users_without_limit_share_evenly() -> None:
    given = turns([Candidate(user, 0, 0, None) for user in "abc"], 300)
    assert Counter(given) == {"a": 100, "b": 100, "c": 100}


def test_the_first_ones_have_one_task_each_before_all_others() -> None:
    some = [Candidate("a", 0, 0, 9), Candidate("b", 1, 5, None), Candidate("c", 2, 3, 4), Candidate("d", 3, 3, 3)]
    assert turns(some, 5, ["c", "d", "b", "gone"]) == ["c", "b", "a", "a", "a"]
    assert turns(some, 1, ["c", "b"]) == ["c"]
