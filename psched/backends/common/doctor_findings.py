"""Findings of `psched doctor` that all backends share."""

from __future__ import annotations

from psched.store import Finding


def unwritable(table: str, error: object) -> Finding:
    """Return the finding on a table whose test write raised `error`."""
    return Finding(
        "writing",
        False,
        f"{table} cannot be written, and workers wait until it can: {error}; "
        "is this a standby, read-only, or does the user lack the right?",
    )
