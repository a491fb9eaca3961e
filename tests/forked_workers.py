"""Forks the pytest workers from the controller after it has imported the test modules (on Linux).

A worker that is a new interpreter would import the modules itself, which takes four seconds of processor time.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import execnet
import pytest
from execnet import gateway_io
from execnet.gateway_base import Popen2IO

_Forked = tuple[int, int, int]
"""The pid of a worker, and the descriptors by which the controller writes to it and reads from it."""


class _Worker(Popen2IO):
    """The controller's ends of a worker's pipes. execnet uses it like a process that execnet has started."""

    def __init__(self, worker: _Forked, execmodel: Any) -> None:
        self._pid, writer, reader = worker
        super().__init__(open(writer, "wb"), open(reader, "rb"), execmodel)  # noqa: PTH123, SIM115 – execnet closes them

    def wait(self) -> int | None:
        with contextlib.suppress(ChildProcessError):
            return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)


def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[execnet.XSpec]) -> None:
    """Fork all workers before the controller has threads. A worker that replaces a crashed one is a new interpreter."""
    if sys.platform != "linux" or not all(spec.popen and not spec.python for spec in specs):
        return
    gc.disable()  # it takes a quarter of that time
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _import_tests(config)
    gc.enable()
    gc.freeze()  # the collector would write to all pages, which the workers share
    config.get_terminal_writer().flush()
    sys.stdout.flush()
    workers: list[_Forked] = []
    for _ in specs:
        workers.append(_fork(workers))
    start = gateway_io.create_io

    def create_io(spec: execnet.XSpec, execmodel: Any) -> Any:
        return _Worker(workers.pop(0), execmodel) if workers else start(spec, execmodel)

    gateway_io.create_io = create_io


def _import_tests(config: pytest.Config) -> None:
    """Import the modules of the selected tests. If an import fails, pytest later repeats it and reports the error."""
    for argument in config.args:
        place = config.rootpath / argument.partition("::")[0]
        for file in sorted(place.rglob("test_*.py") if place.is_dir() else [place]):
            with contextlib.suppress(Exception, pytest.skip.Exception):
                importlib.import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))


def _fork(siblings: Sequence[_Forked]) -> _Forked:
    stdin, to_worker = os.pipe()
    from_worker, stdout = os.pipe()
    pid = os.fork()
    if pid == 0:
        for descriptor in (to_worker, from_worker, *(each for _, *pipes in siblings for each in pipes)):
            os.close(descriptor)  # so that each sees the end of the controller
        _serve(stdin, stdout)
    os.close(stdin)
    os.close(stdout)
    return pid, to_worker, from_worker


def _serve(stdin: int, stdout: int) -> None:
    """Serve execnet like an interpreter that execnet has started, and then end this process."""
    code = 1
    try:
        for number, descriptor in enumerate((stdin, stdout)):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 – for the whole process
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        exec(gateway_io.popen_bootstrapline, {})  # noqa: S102
        code = 0
    except BaseException:  # noqa: BLE001 – nothing of the controller's may go on here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # without the controller's exit handlers
