"""For the tests of applications: types of the pytest plugin's fixtures, assertions, and deliberate faults.

pytest finds the plugin itself, `psched.testing.plugin`, by its entry point. This package loads no database library
until a test uses it.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # Type checkers assume True. Importing `typing` would cost time in every run of pytest.
if TYPE_CHECKING:
    from typing import Any

    from psched.testing.database_clock import DatabaseClock
    from psched.testing.drain import Drain, Run
    from psched.testing.effects_file import Effects
    from psched.testing.faults_decorator import faults
    from psched.testing.submitted import assert_not_submitted, assert_submitted

__all__ = ["DatabaseClock", "Drain", "Effects", "Run", "assert_not_submitted", "assert_submitted", "faults"]

_LAZY = {
    "psched.testing.database_clock": ("DatabaseClock",),
    "psched.testing.drain": ("Drain", "Run"),
    "psched.testing.effects_file": ("Effects",),
    "psched.testing.faults_decorator": ("faults",),
    "psched.testing.submitted": ("assert_not_submitted", "assert_submitted"),
}
"""Module → names that are imported from it at their first use."""


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            value = globals()[name] = getattr(import_module(module), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
