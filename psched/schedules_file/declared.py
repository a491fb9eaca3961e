"""The schedules that a file or an application declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from psched.model import NewSchedule

FORMS: Final[Mapping[str, str]] = {"cron": "{}", "every": "@every {}", "at": "@at {}"}
"""The options that say when a declared schedule is due, each with its form as a cron expression."""


@dataclass(frozen=True, slots=True)
class DeclaredSchedules:
    """The schedules that one owner should have. `source`: the name of the file or the application, for messages.

    `place`: returns the text that begins a message about a schedule, such as `jobs.yml:7: schedules.report`.
    """

    source: str
    owner: str
    schedules: tuple[NewSchedule, ...]
    place: Callable[[str], str] = field(repr=False)
