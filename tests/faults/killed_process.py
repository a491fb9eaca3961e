"""Kills a process before a chosen statement, as in a crash: nothing is closed or rolled back."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

Work = Callable[[Callable[[], None]], object]
"""What the process does. It must call its argument at the point from which its statements count."""


def is_killed_before(number: int, work: Work) -> bool:
    """Run `work` in a forked process, and kill this process before its statement or commit `number`, counted from 0.

    Return False if it has fewer statements; the process then also ends without closing anything. `work` must not use a
    connection of the parent.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _perish(number, work)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), f"the work itself failed with exit code {code}"
    return code != 0


def _perish(number: int, work: Work) -> None:
    left = number

    def count(*_: Any) -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    def begin() -> None:
        sa.event.listen(sa.Engine, "before_cursor_execute", count)
        sa.event.listen(sa.Engine, "commit", count)

    code = 1
    try:
        work(begin)
        code = 0
    except BaseException:  # noqa: BLE001 – nothing of the test session may go on in here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
