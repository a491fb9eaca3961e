"""Writes rules that psched runs, but refuses to write into tables that Ruby workers may share."""

from __future__ import annotations

import contextlib
from unittest import mock


def rules_unchecked() -> contextlib.AbstractContextManager[object]:
    """Return a context in which psched writes such rules (cron with seconds, for example), as another program could."""
    return mock.patch("psched.backends.rdb_compat.schedule_store.check_rule")
