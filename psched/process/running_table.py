"""The table of a child's runs, in memory that the child shares with its master."""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Mapping
from typing import NamedTuple

_HEADER = struct.Struct("=QII")  # claim, length, checksum; length 0: idle
_CELL_SIZE = 2048
_LONGEST_NAME = _CELL_SIZE - _HEADER.size
_IDLE = bytes(_HEADER.size)


class RunRecord(NamedTuple):
    """One entry of the running table: a run as `section:key`, and the number of its acquire (`Lease.claim`)."""

    name: str
    claim: int = 0


class RunningTable:
    """A table in shared memory with one cell for each handler thread. Only that thread writes to its cell."""

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self._memory = mmap.mmap(-1, cells * _CELL_SIZE)
        self._frozen = False

    def running(self, cell: int, name: str, claim: int = 0) -> None:
        """Record that handler thread `cell` runs `name`. Names are cut after about 2,000 bytes of UTF-8.

        `claim`: the number of the acquire, up to 64 bits.
        """
        if not self._frozen:
            self._write(cell, name, claim)

    def freeze(self, runs: Mapping[int, RunRecord]) -> None:
        """Record these runs, given by cell, for good. From now on, `running` and `idle` do nothing."""
        self._frozen = True
        for cell, (name, claim) in runs.items():
            self._write(cell, name, claim)

    def _write(self, cell: int, name: str, claim: int) -> None:
        text = name.encode("utf-8", "replace")[:_LONGEST_NAME]
        start = cell * _CELL_SIZE
        header = _HEADER.pack(claim, len(text), _checksum(claim, text))
        self._memory[start : start + _HEADER.size + len(text)] = header + text

    def idle(self, cell: int) -> None:
        if self._frozen:
            return
        start = cell * _CELL_SIZE
        self._memory[start : start + _HEADER.size] = _IDLE

    def names(self) -> tuple[str, ...]:
        """Return the names of the running tasks, in the order of cells. Never raises, even if the memory is damaged."""
        return tuple([run.name for run in self.runs()])

    def runs(self) -> tuple[RunRecord, ...]:
        """Return the runs in progress, in the order of cells. Never raises, even if the memory is damaged."""
        entries = (self._read(cell * _CELL_SIZE) for cell in range(self.cells))
        return tuple(entry for entry in entries if entry is not None)

    def close(self) -> None:
        self._memory.close()

    def _read(self, start: int) -> RunRecord | None:
        claim, length, checksum = _HEADER.unpack_from(self._memory, start)
        if not 0 < length <= _LONGEST_NAME:
            return None
        text = self._memory[start + _HEADER.size : start + _HEADER.size + length]
        return RunRecord(text.decode("utf-8", "replace"), claim) if _checksum(claim, text) == checksum else None


def _checksum(claim: int, text: bytes) -> int:
    return zlib.crc32(text, claim & 0xFFFFFFFF) ^ claim >> 32
