"""The status that a running master reports to commands: reload, upgrade, problems, and workers that are starting.

The status is one line of JSON: the second line of the pid file. The master writes it; `pschedd reload`, `upgrade` and
`status` read it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cattrs import Converter

_LONGEST = 1000
"""The maximum number of characters of one reason, so that the whole line fits into one read."""
_MOST_TROUBLES = 5
_MOST_PENDING = 100
_LONGEST_END = 100


@dataclass(slots=True)
class RequestStatus:
    """The last request of one kind.

    A command reads `begun`, sends a signal, and waits until `ended` is larger than the number that it has read. The
    master counts a request before it reads any file, so the outcome that the command gets belongs to files that were
    read after the signal. A new request replaces a request that is in progress.
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
    """When the worker will be forked, by the monotonic clock that all processes of a host share. None: the worker has
    been forked."""
    last_end: str
    """How the previous worker ended, such as "was killed by SIGSEGV". Empty after an orderly end, or without such a
    worker."""

    def text(self, now: float) -> str:
        """Return the line of `pschedd status` for a slot whose worker is not up."""
        state = "is being restarted" if self.last_end else "is being started"
        wait = 0.0 if self.fork_at is None else self.fork_at - now
        due = f" (in {wait:.1f} s)" if wait > 0 else ""
        return f"worker {self.number} {state}{due}{self.history}"

    @property
    def history(self) -> str:
        return f"; the previous one {self.last_end}" if self.last_end else ""


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
        """Parse the line of a pid file.

        Return an empty status if the line is invalid: the daemon's user may write anything into the file.
        """
        try:
            return _converter.structure(json.loads(line), cls)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return cls()


def _printable(text: Any, _: type[str]) -> str:
    """Return `text` without control characters.

    Root prints it on a terminal, and a terminal would obey these characters.
    """
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in str(text))[:_LONGEST]


_converter = Converter(detailed_validation=False)
_converter.register_structure_hook(str, _printable)
_converter.register_unstructure_hook(str, lambda text: text[:_LONGEST])
_converter.register_unstructure_hook(PendingWorker, lambda w: {**asdict(w), "last_end": w.last_end[:_LONGEST_END]})
