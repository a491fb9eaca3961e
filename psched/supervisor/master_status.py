"""The status that a running master reports to its commands: reload, upgrade, troubles, workers being started.

One line of JSON, the second of the pid file: written by the master, read by `pschedd reload`, `upgrade` and `status`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cattrs import Converter

_LONGEST = 1000
"""Characters of one reason, so that the whole line fits into one read."""
_MOST_TROUBLES = 5
_MOST_PENDING = 100
_LONGEST_END = 100


@dataclass(slots=True)
class RequestStatus:
    """The last request of one kind. A command reads `begun`, signals, and waits until `ended` is larger than that.

    The master counts and publishes a request before it reads any file, so the outcome that a command waits for
    belongs to files read after its signal. A request that comes during another one takes its place.
    """

    begun: int = 0
    ended: int = 0
    """The number of the last request that has an outcome."""
    refusal: str | None = None

    @property
    def open(self) -> bool:
        return self.ended < self.begun

    def begin(self) -> None:
        self.begun += 1

    def end(self, refusal: str | None) -> None:
        if self.open:
            self.ended = self.begun
            self.refusal = refusal


@dataclass(frozen=True, slots=True)
class PendingWorker:
    number: int
    fork_at: float | None
    """When it will be forked, by the monotonic clock, which all processes of a host share; None: it was forked."""
    last_end: str
    """How the worker before it ended ("was killed by SIGSEGV"); empty for the first, or after an orderly end."""

    def text(self, now: float) -> str:
        """Return the line of `pschedd status` for a slot without a process."""
        state = "is being restarted" if self.last_end else "is being started"
        wait = 0.0 if self.fork_at is None else self.fork_at - now
        due = f" (in {wait:.1f} s)" if wait > 0 else ""
        return f"worker {self.number} {state}{due}{self.history}"

    @property
    def history(self) -> str:
        return f"; the last one {self.last_end}" if self.last_end else ""


@dataclass(slots=True)
class MasterStatus:
    reload: RequestStatus = field(default_factory=RequestStatus)
    upgrade: RequestStatus = field(default_factory=RequestStatus)
    troubles: tuple[str, ...] = ()
    pending: tuple[PendingWorker, ...] = ()

    def line(self) -> str:
        shown = replace(self, troubles=self.troubles[:_MOST_TROUBLES], pending=self.pending[:_MOST_PENDING])
        return json.dumps(_converter.unstructure(shown))

    @classmethod
    def parse(cls, line: str) -> MasterStatus:
        """Return an empty status when `line` cannot be read: the daemon's user may write anything there."""
        try:
            return _converter.structure(json.loads(line), cls)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return cls()


def _printable(text: Any, _: type[str]) -> str:
    """Return `text` without control characters: root prints it on a terminal, which would obey them."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in str(text))[:_LONGEST]


_converter = Converter(detailed_validation=False)
_converter.register_structure_hook(str, _printable)
_converter.register_unstructure_hook(str, lambda text: text[:_LONGEST])
_converter.register_unstructure_hook(PendingWorker, lambda w: {**asdict(w), "last_end": w.last_end[:_LONGEST_END]})
