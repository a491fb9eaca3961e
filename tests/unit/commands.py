"""Runs programs by the handler Command, and observes their processes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from psched.errors import ImmediateProcessStopError
from psched.handlers.command import CommandHandler
from tests.unit.fake_task import Ledger

_PATIENCE = 10.0


def run(ledger: Ledger, **data: Any) -> CommandHandler:
    handler = CommandHandler(ledger.task("command", data))
    handler.run()
    return handler


def shell(ledger: Ledger, command: str, **data: Any) -> None:
    run(ledger, **in_shell(command), **data)


def in_shell(command: str) -> dict[str, Any]:
    return {"shell": True, "command": command}


def wait_for(path: Path) -> str:
    """Wait until the file contains a whole line. Return its content."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().endswith("\n"):
            return path.read_text()
        time.sleep(0.01)
    pytest.fail(f"{path} was not written")


def is_gone(pid: int) -> bool:
    """Return whether the process has ended, reaped or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def stop(handler: CommandHandler) -> None:
    """Stop a handler as the daemon does."""
    handler.task.stop_reason = ImmediateProcessStopError()
    handler.kill(handler.task.stop_reason)
