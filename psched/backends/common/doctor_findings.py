"""Findings of `psched doctor` that all backends share."""

from __future__ import annotations

from psched.store import Finding


def unwritable(table: str, error: object) -> Finding:
    """Return the finding about a table whose test write raised `error`."""
    return Finding(
        "writing",
        False,
        f"{table} cannot be written, so workers wait: {error}; check that the server is not a read-only standby, and "
        "that the user may write",
    )
