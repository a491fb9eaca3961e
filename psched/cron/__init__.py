"""The occurrences of a cron expression in a time zone, according to a dialect. Times are unix seconds."""

from psched.cron.expression import DIALECTS, MAX_LENGTH, CronDialect, check_dialect, excessive_step
from psched.cron.occurrences import (
    Occurrence,
    count,
    first_time,
    last_time,
    next_time,
    occurrences,
    validate,
)
from psched.cron.zones import check_timezone, reckoning, tz_database

__all__ = [
    "DIALECTS",
    "MAX_LENGTH",
    "CronDialect",
    "Occurrence",
    "check_dialect",
    "check_timezone",
    "count",
    "excessive_step",
    "first_time",
    "last_time",
    "next_time",
    "occurrences",
    "reckoning",
    "tz_database",
    "validate",
]
