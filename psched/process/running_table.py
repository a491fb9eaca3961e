"""The tasks that a child runs right now, in memory shared with its master. Written in the child, read in the master.

An entry is one memory write without a system call, and it outlasts kill -9. So the master knows which task to suspect
of a crash. An entry that is torn, because the child died while writing it, is recognised by its checksum and skipped.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Mapping

_HEADER = struct.Struct("=II")  # length, checksum; length 0: idle
_CELL = 2048
_LONGEST = _CELL - _HEADER.size
_IDLE = bytes(_HEADER.size)


class RunningTable:
    """One cell for each handler thread. Made before the fork; writers share no cell."""

    def __init__(self, cells: int) -> None:
        self._cells = cells
        self._memory = mmap.mmap(-1, cells * _CELL)
        self._frozen = False

    def running(self, cell: int, name: str) -> None:
        """Record that handler thread `cell` runs `name`, which is cut after some 2,000 bytes of UTF-8."""
        if not self._frozen:
            self._write(cell, name)

    def freeze(self, names: Mapping[int, str]) -> None:
        """Record `names` by cell, and ignore every later change."""
        self._frozen = True
        for cell, name in names.items():
            self._write(cell, name)

    def _write(self, cell: int, name: str) -> None:
        text = name.encode("utf-8", "replace")[:_LONGEST]
        start = cell * _CELL
        self._memory[start : start + _HEADER.size + len(text)] = _HEADER.pack(len(text), zlib.crc32(text)) + text

    def idle(self, cell: int) -> None:
        """Record that handler thread `cell` runs nothing."""
        if self._frozen:
            return
        start = cell * _CELL
        self._memory[start : start + _HEADER.size] = _IDLE

    def names(self) -> tuple[str, ...]:
        """Return the names of the running tasks, by cell. Never raises, whatever is in the memory."""
        entries = (self._read(cell * _CELL) for cell in range(self._cells))
        return tuple(entry for entry in entries if entry is not None)

    def close(self) -> None:
        """Free the memory. In the master, once the child is gone and its table has been read for the last time."""
        self._memory.close()

    def _read(self, start: int) -> str | None:
        length, checksum = _HEADER.unpack_from(self._memory, start)
        if not 0 < length <= _LONGEST:
            return None
        text = self._memory[start + _HEADER.size : start + _HEADER.size + length]
        return text.decode("utf-8", "replace") if zlib.crc32(text) == checksum else None
