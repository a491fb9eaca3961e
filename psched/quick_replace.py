from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["quick_replace"]

if TYPE_CHECKING:
    from dataclasses import replace as quick_replace
else:

    def quick_replace(row, /, **changes):
        """Do the same as `dataclasses.replace`, for a dataclass that has no `__slots__` and no `__post_init__`.

        For a schedule's row the call takes 1.5 instead of 10 microseconds (29 November 2026).
        """
        copy = object.__new__(row.__class__)
        values = vars(copy)
        values.update(vars(row), **changes)
        if len(values) > len(vars(row)):
            raise TypeError(f"expected fields of {row.__class__.__name__}, got {', '.join(changes)}")
        return copy
