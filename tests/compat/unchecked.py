"""Rules that psched runs and does not write where Ruby workers may share the table. In the test process."""

from __future__ import annotations

import contextlib
from unittest import mock


def rules_unchecked() -> contextlib.AbstractContextManager[object]:
    """Within it schedules may have seconds in the originals' table, as if somebody else had written them."""
    return mock.patch("psched.backends.rdb_compat.schedules.check_rule")
