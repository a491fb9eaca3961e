"""Schedulers that were created or started before the process forked."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

import pytest

from psched import ScheduleError
from tests.scheduler.site import Site


def in_a_fork(work: Callable[[], object]) -> int:
    """Call `work` in a forked process that ends by `os._exit`, as multiprocessing does. Return the exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 – whatever a child's assertion raises
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_scheduler_that_pushed_before_a_fork_works_in_both_processes(each_site: Site) -> None:
    """The child runs two of the three tasks, and uses no connection of its parent."""
    scheduler = each_site.scheduler()
    done = each_site.folder / "done"

    @scheduler.bind("note")
    def note(data: str) -> None:
        with done.open("a") as file:
            file.write(f"{data} {os.getpid()}\n")

    def child() -> None:
        with scheduler:
            scheduler.push("note", data="child's")
            each_site.wait_for(lambda: done.exists() and done.read_text().count("\n") == 2)

    scheduler.push("note", data="parent's")
    assert in_a_fork(child) == 0
    scheduler.push("note", data="later")
    with scheduler:
        each_site.wait_for(lambda: done.read_text().count("\n") == 3)
    lines = [line.split() for line in done.read_text().splitlines()]
    assert [words[0] for words in lines if words[1] == str(os.getpid())] == ["later"]


def test_a_scheduler_started_before_a_fork_is_refused_in_the_child(site: Site) -> None:
    scheduler = site.scheduler()
    scheduler.bind("task", lambda data: None)

    def child() -> None:
        for verb in (lambda: scheduler.push("task"), scheduler.start, scheduler.stop, scheduler.clear):
            with pytest.raises(ScheduleError, match="before this process .* was forked off; start it in each"):
                verb()

    with scheduler:
        assert in_a_fork(child) == 0
        site.wait_until_over(scheduler.push("task"))
