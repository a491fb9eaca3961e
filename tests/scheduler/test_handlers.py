"""Which functions can be bound, and how a run ends whose row is gone."""

from __future__ import annotations

import queue
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from psched import ConfigError, create_scheduler
from tests.scheduler.site import Site


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
        """Forget the data."""

    with pytest.raises(ValueError, match="must take one argument, the data of its task"):
        site.scheduler().bind("task", function)


def test_a_decorator_without_a_name_says_what_to_write(site: Site) -> None:
    with pytest.raises(ValueError, match="bind\\('name'\\)"):
        site.scheduler().bind(lambda data: None)  # type: ignore[call-overload]


def test_an_argument_that_is_no_text_is_refused_with_what_is_expected(site: Site) -> None:
    with pytest.raises(ConfigError, match="cron must be text .* got 5"):
        site.scheduler().register("task", 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tls: expected a mapping with some of .*, got 'yes'"):
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
