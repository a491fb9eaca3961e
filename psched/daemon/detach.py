"""Going into the background, and telling the command that started us how it went. Used by `pschedd start` only.

The command forks; the child becomes a daemon (python-daemon: a session of its own, descriptors closed, / as its folder)
and answers through a pipe: "ready" when its children are up, a reason when it cannot even open its log. Silence
followed by the end of the pipe means that it died, and the log says why.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from daemon import DaemonContext

from psched.daemon.pidfile import PidFileError
from psched.errors import ConfigError

_READY = b"ready\n"
_UMASK = 0o027


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a start went: `ready`, `died` with a reason (empty: the log has it), or neither, when time was up."""

    ready: bool
    died: bool
    reason: str = ""


def detach(serve: Callable[[Callable[[], None]], int], keep: Iterable[int], timeout: float | None) -> Outcome:
    """Run `serve(ready)` in a daemon, which keeps the descriptors `keep`, and return once it called `ready()` or died.

    The daemon exits with what `serve` returns. After `timeout` seconds (None: no limit) it goes on by itself.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _serve_detached(serve, [*keep, writer], writer)
    os.close(writer)
    os.waitpid(child, 0)  # python-daemon ends it at once and goes on in a grandchild
    try:
        return _await(reader, timeout)
    finally:
        os.close(reader)


def _serve_detached(serve: Callable[[Callable[[], None]], int], keep: list[int], writer: int) -> None:
    """Become the daemon and never return. Raises SystemExit."""
    with DaemonContext(detach_process=True, umask=_UMASK, files_preserve=keep, signal_map={}):
        answer = _Answer(writer)
        try:
            code = serve(answer.ready)
        except Exception as error:  # noqa: BLE001 – nobody is above us but who waits for an answer
            answer.give(_told(error).encode())
            code = 1
        raise SystemExit(code)


def _told(error: Exception) -> str:
    """What was foreseen speaks for itself; anything else is at least named."""
    foreseen = isinstance(error, ConfigError | PidFileError | OSError)
    return str(error) if foreseen else f"{type(error).__name__}: {error}"


class _Answer:
    """The daemon's end of the pipe; it speaks once."""

    def __init__(self, writer: int) -> None:
        self._writer: int | None = writer

    def ready(self) -> None:
        self.give(_READY)

    def give(self, words: bytes) -> None:
        if self._writer is None:
            return
        with suppress(BrokenPipeError):  # who started us did not wait
            os.write(self._writer, words)
        os.close(self._writer)
        self._writer = None


def _await(reader: int, timeout: float | None) -> Outcome:
    if not select.select([reader], [], [], timeout)[0]:
        return Outcome(ready=False, died=False)
    answer = os.read(reader, 65536)
    if answer == _READY:
        return Outcome(ready=True, died=False)
    return Outcome(ready=False, died=True, reason=answer.decode(errors="replace").strip())
