"""Runs a worker by `psched run` or `psched queue run`, and waits for the file that its handler writes."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faultlab import forkserver_client
from tests.cli.commands import Commands

PATIENCE = 20.0


@contextmanager
def running(psched: Commands, *arguments: str) -> Iterator[forkserver_client.Process]:
    """Start a worker, wait until a handler has written the file `ran`, and yield the process.

    At the end the worker must stop gracefully.
    """
    with psched.start(*arguments, stderr=subprocess.PIPE) as process:
        try:
            wait_for(psched.folder / "ran", process)
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def wait_for(file: Path, process: forkserver_client.Process) -> None:
    deadline = time.monotonic() + PATIENCE
    while not file.exists():
        assert process.poll() is None and time.monotonic() < deadline, process.stderr and process.stderr.read()
        time.sleep(0.05)
