"""What kinds of errors a database or Redis may answer with."""

from __future__ import annotations

import enum


class Fault(enum.Enum):
    """How a database error passes by itself."""

    CONFLICT = "rolled back for the sake of others (deadlock, serialisation, lock or statement timeout): try again"
    LOST = "the connection or the server is gone; whether the statement was done is unknown: try on a fresh connection"
