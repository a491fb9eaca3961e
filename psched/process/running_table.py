"""What a child runs right now, in memory it shares with its master. Written in the child, read in the master.

A word is one memory write without a system call, and it is still there after kill -9. The master so knows which task to
suspect of a crash. A word that was torn by a death in the middle of its writing is told by its checksum and not read.
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
        self._sealed = False

    def running(self, cell: int, name: str) -> None:
        """Say that handler thread `cell` runs `name`. Longer than some 2,000 bytes of UTF-8, it is cut."""
        if not self._sealed:
            self._write(cell, name)

    def freeze(self, names: Mapping[int, str]) -> None:
        """Say that these run, by cell, and whatever begins or ends from now on changes nothing of it."""
        self._sealed = True
        for cell, name in names.items():
            self._write(cell, name)

    def _write(self, cell: int, name: str) -> None:
        word = name.encode("utf-8", "replace")[:_LONGEST]
        start = cell * _CELL
        self._memory[start : start + _HEADER.size + len(word)] = _HEADER.pack(len(word), zlib.crc32(word)) + word

    def idle(self, cell: int) -> None:
        """Say that handler thread `cell` runs nothing."""
        if self._sealed:
            return
        start = cell * _CELL
        self._memory[start : start + _HEADER.size] = _IDLE

    def names(self) -> tuple[str, ...]:
        """Return what runs, by cell. Never raises, whatever stands in the memory."""
        words = (self._word(cell * _CELL) for cell in range(self._cells))
        return tuple(word for word in words if word is not None)

    def close(self) -> None:
        """Give the memory back. In the master, once the child is gone and read for the last time."""
        self._memory.close()

    def _word(self, start: int) -> str | None:
        length, checksum = _HEADER.unpack_from(self._memory, start)
        if not 0 < length <= _LONGEST:
            return None
        word = self._memory[start + _HEADER.size : start + _HEADER.size + length]
        return word.decode("utf-8", "replace") if zlib.crc32(word) == checksum else None
