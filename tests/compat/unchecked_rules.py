"""Rules that psched runs but does not write into tables that Ruby workers may share. In the test process."""

from __future__ import annotations

import contextlib
from unittest import mock


def rules_unchecked() -> contextlib.AbstractContextManager[object]:
    """Within it schedules may have seconds in the originals' table, as if somebody else had written them."""
    return mock.patch("psched.backends.rdb_compat.schedules.check_rule")
