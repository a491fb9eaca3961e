"""Objects for new tasks and schedules can be passed around, compared and copied like any value."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from psched import NewSchedule, NewTask

New = NewSchedule | NewTask


def pickled(new: New) -> New:
    copied: New = pickle.loads(pickle.dumps(new))  # noqa: S301 – our own
    return copied


@pytest.mark.parametrize("new", [NewTask("key", "t"), NewSchedule("key", "t", "* * * * *")])
@pytest.mark.parametrize("of", [pickled, copy.copy, copy.deepcopy])
def test_what_has_no_data_can_be_copied_and_nobody_can_give_some_to_all(new: New, of: Callable[[New], New]) -> None:
    copied = of(new)
    assert copied == new
    assert copied.data == {}
    assert "data={}" in repr(copied)
    with pytest.raises(TypeError):
        copied.data["for"] = "all"  # type: ignore[index]
