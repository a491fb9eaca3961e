"""Functions that can be bound, and the end of a run whose row has been deleted."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from psched import ConfigError, create_scheduler
from psched.execution.handler_loop import HandlerLoop
from psched.scheduler.stores import open_scheduler_stores, scheduler_settings
from psched.store.run_stats import HOUR, StatsWindow
from tests.scheduler.site import PATIENCE, Site


def generator(data: Any) -> Iterator[Any]:
    yield data


async def async_generator(data: Any) -> AsyncIterator[Any]:
    yield data


@pytest.mark.parametrize("function", [generator, async_generator])
def test_a_generator_which_would_never_run_cannot_be_bound(site: Site, function: Any) -> None:
    with pytest.raises(ValueError, match="generator, which would never run"):
        site.scheduler().bind("task", function)


def test_a_function_without_a_parameter_cannot_be_bound(site: Site) -> None:
    def function() -> None:
        """Ignore the data."""

    with pytest.raises(ValueError, match="must take one argument, the data of its task"):
        site.scheduler().bind("task", function)


def test_a_decorator_without_a_name_says_what_to_write(site: Site) -> None:
    with pytest.raises(ValueError, match="bind\\('name'\\)"):
        site.scheduler().bind(lambda data: None)  # type: ignore[call-overload]


def test_an_argument_that_is_no_text_is_refused_with_what_is_expected(site: Site) -> None:
    with pytest.raises(ConfigError, match="cron must be text .* got 5"):
        site.scheduler().register("task", 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tls: expected a mapping with one or more of .*, got 'yes'"):
        create_scheduler(site.url, tls="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_whose_row_was_cleared_is_logged_and_the_next_task_runs(
    site: Site, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    caplog.set_level("INFO", "psched")
    ends: queue.Queue[str] = queue.Queue()
    scheduler = site.scheduler(concurrency=1)

    @scheduler.bind("clear")
    def clear(data: Any) -> None:
        scheduler.clear()
        if fails:
            raise ValueError("after all")

    scheduler.bind("next", ends.put)
    with scheduler:
        scheduler.push("clear")
        scheduler.push("next", "went on", delay=0.5)
        site.wait_for(lambda: "was removed while it ran" in caplog.text)
        scheduler.push("next", "still here")
        assert ends.get(timeout=10) in ("went on", "still here")
    assert "it runs again" not in caplog.text
    assert caplog.text.count("Traceback") == (1 if fails else 0), (
        "only an error of the handler is logged with its traceback"
    )


def test_runs_are_in_the_statistics_of_their_own_scheduler(site: Site) -> None:
    ends: queue.Queue[str] = queue.Queue()
    scheduler, idle = site.scheduler(concurrency=1), site.scheduler(concurrency=1, prefix="idle:")
    for each in (scheduler, idle):
        each.bind("note", ends.put)
        each.start()
    for number in range(3):
        scheduler.push("note", str(number))
    for _ in range(3):
        ends.get(timeout=PATIENCE)
    scheduler.stop()
    idle.stop()
    assert runs(site, site.prefix) == {"note": 3}
    assert runs(site, "idle:") == {}


def runs(site: Site, prefix: str) -> dict[str, int]:
    """Return the number of tasks' runs in the previous and the present hour, by type."""
    settings = scheduler_settings(site.url, prefix, "UTC", None, 300)
    with contextlib.closing(open_scheduler_stores(settings)) as stores:
        found = stores.queue.stats
        assert found is not None
        hour = int(stores.queue.now()) // HOUR * HOUR
        return {each.type: each.sums.runs for each in found.totals(StatsWindow(hour - HOUR, hour + HOUR, HOUR))}


def test_an_unexpected_error_ends_no_thread(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed: set[str] = set()
    wait = HandlerLoop._wait

    def fail_once_in_each_thread(loop: HandlerLoop) -> None:
        name = threading.current_thread().name
        if name in failed:
            return wait(loop)
        failed.add(name)
        raise RuntimeError(f"{name}: as told")

    monkeypatch.setattr(HandlerLoop, "_wait", fail_once_in_each_thread)
    calls: queue.Queue[Any] = queue.Queue()
    scheduler = site.scheduler(concurrency=1)
    scheduler.bind("job", calls.put)
    scheduler.register("job", "* * * * * *")
    with scheduler:
        site.wait_for(lambda: failed == {"psched occurrences", "psched handler 1"})
        scheduler.push("job", "pushed")
        assert {calls.get(timeout=PATIENCE) for _ in range(3)} == {None, "pushed"}
    for name in failed:
        (record,) = [record for record in caplog.records if f"{name}: as told" in record.getMessage()]
        assert record.exc_info
