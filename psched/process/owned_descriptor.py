"""A file descriptor that psched closes or writes to only while it still belongs to the same open file."""

from __future__ import annotations

import os


class OwnedDescriptor:
    """A file descriptor of a process with handlers. A handler may close the descriptor or reuse its number."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._opened = os.fstat(descriptor)

    def is_ours(self) -> bool:
        """Return whether the number still belongs to the same open file."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), self._opened)
        except OSError:
            return False

    def close(self) -> None:
        if self.is_ours():
            os.close(self.descriptor)
