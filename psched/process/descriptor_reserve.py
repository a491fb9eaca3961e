"""File descriptors that a child keeps, so that it can end in an orderly way when its handlers leave no other free."""

from __future__ import annotations

import os

from psched.descriptor_shortage import descriptor_shortage
from psched.process.owned_descriptor import OwnedDescriptor

_COUNT = 16
"""Enough to connect to the databases of both sections, each from two threads."""


class DescriptorReserve:
    def __init__(self) -> None:
        """Raises OSError if too few descriptors are free."""
        reader, writer = os.pipe()  # no other open file is the same, so OwnedDescriptor cannot confuse them
        self._kept = [OwnedDescriptor(each) for each in (reader, writer, *(os.dup(reader) for _ in range(_COUNT - 2)))]

    def release_if_needed(self) -> str | None:
        """Release the reserve if this process cannot open a descriptor. Return why it cannot.

        Return None if it can, or if the reserve is already released.
        """
        shortage = descriptor_shortage() if self._kept else None
        if shortage is not None:
            for kept in self._kept:
                kept.close()
            self._kept = []
        return shortage
