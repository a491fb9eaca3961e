"""Async variants of methods: which methods have one, with which name and signature."""

from __future__ import annotations

import inspect

import pytest

from psched.queue.queue import Queue, QueuedTask
from psched.schedules.collection import ScheduleCollection
from psched.schedules.schedule_handle import Schedule

_WITHOUT = {"poll", "poll_multi", "preempt", "check", "state", "submit_to", "submit_sql", "of_type", "candidates"} | {
    "rows_of",
    "audits_with_evidence",
}
"""Methods without an async variant: they lease a row to this process, send no query, or are called only by psched."""


def test_asubmit_names_what_is_wrong_with_a_call() -> None:
    with pytest.raises(TypeError, match="asubmit.*missing 1 required positional argument: 'type'"):
        Queue.asubmit(object(), "key")  # type: ignore[arg-type, call-arg]
    with pytest.raises(TypeError, match=r"asubmit.*takes from 3 to 4 positional arguments"):
        Queue.asubmit(object(), "key", "type", {}, 5)  # type: ignore[arg-type, call-arg]


@pytest.mark.parametrize("kind", [ScheduleCollection, Schedule, Queue, QueuedTask])
def test_every_public_method_has_an_async_twin_with_its_signature(kind: type) -> None:
    public = {name: item for name, item in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
    twins = {name for name in public if name.startswith("a") and name[1:] in public}
    assert twins == {f"a{name}" for name in public.keys() - twins - _WITHOUT}
    for name in twins:
        twin, method = public[name], public[name[1:]]
        assert inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin)
        assert inspect.signature(twin) == inspect.signature(method)
        assert (twin.__name__, twin.__qualname__.rpartition(".")[2]) == (name, name)
        assert twin.__doc__ != method.__doc__
