"""What can be bound, and what becomes of a run whose row is gone."""

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
def test_a_generator_which_would_never_run_cannot_be_bound(open_section: Site, function: Any) -> None:
    with pytest.raises(ValueError, match="generator, which would never run"):
        open_section.scheduler().bind("task", function)


def test_a_decorator_without_a_name_says_what_to_write(open_section: Site) -> None:
    with pytest.raises(ValueError, match="bind\\('name'\\)"):
        open_section.scheduler().bind(lambda data: None)  # type: ignore[call-overload]


def test_what_is_no_text_is_refused_with_what_was_expected(open_section: Site) -> None:
    with pytest.raises(ConfigError, match="cron must be text .* got 5"):
        open_section.scheduler().register("task", 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tls: expected a mapping, got 'yes'"):
        create_scheduler(open_section.url, tls="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_whose_row_was_cleared_says_so_and_harms_nothing(
    open_section: Site, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    caplog.set_level("INFO", "psched")
    ends: queue.Queue[str] = queue.Queue()
    scheduler = open_section.scheduler(concurrency=1)

    @scheduler.bind("clear")
    def clear(data: Any) -> None:
        scheduler.clear()
        if fails:
            raise ValueError("after all")

    scheduler.bind("next", ends.put)
    with scheduler:
        scheduler.push("clear")
        scheduler.push("next", "went on", delay=0.5)
        open_section.wait_for(lambda: "was removed while it ran" in caplog.text)
        scheduler.push("next", "still here")
        assert ends.get(timeout=10) in ("went on", "still here")
    assert "it comes back" not in caplog.text
    assert caplog.text.count("Traceback") == (1 if fails else 0), "an error of ours is no news, the handler's is"
