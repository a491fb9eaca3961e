"""The result of one check of `psched doctor`. Stores yield findings about their tables and servers."""

from __future__ import annotations

from typing import Literal, NamedTuple

FindingLevel = Literal["ok", "warning", "failed"]


class Finding(NamedTuple):
    """The result of one check of `psched doctor`.

    - `ok`: whether the subject is in order.
    - `warning`: the subject is in order, but an operator should look at it.
    - `message`: a sentence.
    - `remedy`: what to do; None if there is nothing to do, or if the message already names it.
    """

    subject: str
    ok: bool
    message: str
    warning: bool = False
    remedy: str | None = None

    @property
    def level(self) -> FindingLevel:
        """The severity of the finding."""
        return "failed" if not self.ok else "warning" if self.warning else "ok"

    @property
    def text(self) -> str:
        """The message and the remedy."""
        return self.message if self.remedy is None else f"{self.message}; {self.remedy}"


def unwritable(table: str, error: object) -> Finding:
    """Return the finding about a table whose test write raised `error`."""
    return Finding(
        "writing",
        False,
        f"{table} cannot be written, so workers wait: {error}; check that the server is not a read-only standby, and "
        "that the user may write",
    )
