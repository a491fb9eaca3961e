"""Cron: which instant a schedule is due next, in a time zone and by a dialect. Used in every process but the master.

An expression is parsed once (`expression`), matched in naive local time (`matching`), and the wall times that match are
resolved to instants with the time zone (`resolve`). Times are unix seconds.
"""

from psched.cron.expression import DIALECTS, MAX_LENGTH, check_dialect
from psched.cron.occurrences import count, first_time, last_time, next_time, validate
from psched.cron.preview import Occurrence, occurrences
from psched.cron.zones import check_timezone, tz_database

__all__ = [
    "DIALECTS",
    "MAX_LENGTH",
    "Occurrence",
    "check_dialect",
    "check_timezone",
    "count",
    "first_time",
    "last_time",
    "next_time",
    "occurrences",
    "tz_database",
    "validate",
]
