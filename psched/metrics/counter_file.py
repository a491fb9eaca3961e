"""The file of counters of one node. The node's processes map the file. The master and each slot have a block.

A block has one writer at a time, and its numbers only grow: the next child of a slot adds to the counts of the previous
child. After a binary upgrade, the old and the new master have blocks in the same file. A later master continues the
blocks of a master that has ended. A master that starts without an upgrade replaces the file, and so resets every
number.

All numbers are doubles of the machine. The file begins with a line that names the layout; blocks begin at `_FIRST`. A
block has a header, a text, and counters. A counter has a label and `SIZE` numbers. A label is words separated by tabs.
The processor writes a double by one store, so a reader never sees a part of a double.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from psched.clock import monotonic
from psched.histogram import BUCKETS

_LAYOUT = b"psched counters 1\n"
_MODE = 0o640
_LONGEST_LOCK = 0.1
"""The maximum number of seconds that a master waits for the lock of the file."""
_FIRST = 65536
_BLOCK = 5 * 65536
"""Bytes of a block: a multiple of every page size. The file is sparse, so pages without counters take no space."""
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14 or later, which the module mmap does not name."""
_HEADER = 64
"""The index of the double at which the first counter of a block begins."""
_TEXT = 256
"""The maximum number of bytes of a label or of a block's text. Also the offset, in bytes, of that text in the block."""
_LABEL = _TEXT // 8
"""The number of doubles that hold a label."""

COUNT = 0
FIRST_SUM = 1
SECOND_SUM = 2
FIRST_BUCKETS = 3
SECOND_BUCKETS = FIRST_BUCKETS + BUCKETS
_SINCE = SECOND_BUCKETS + BUCKETS
"""The index of the monotonic time at which a counter was made. The numbers before this index are a count, two sums of
seconds, and two histograms."""
SIZE = _SINCE + 1
_ENTRY = _LABEL + SIZE
_MOST = (_BLOCK // 8 - _HEADER) // _ENTRY

Label = tuple[str, ...]


class _Header(IntEnum):
    """The numbers at the start of a block. Times are monotonic seconds.

    All processes of a host have the same monotonic clock.
    """

    USED = 0
    MASTER = 1
    PID = 2
    FORKED_AT = 3
    HEARTBEAT = 4
    RUNNING = 5
    IS_READY = 6


class CounterFileError(Exception):
    """The file of counters cannot be read. The message contains the reason and the remedy."""


class CounterBlock:
    """One block, in the process that writes it. Several threads may write at the same time."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._bytes = memoryview(memory)
        self.values = self._bytes.cast("d")
        self._counters: dict[Label, int] = {}
        self.reopen()

    def reopen(self) -> None:
        """Read which counters the block has, so that their counts continue. Called in a child, after the fork."""
        self.lock = threading.Lock()
        self._counters = {label: number for number, (label, _) in enumerate(_counters(self.values, self._bytes))}

    def counter(self, *label: str) -> int | None:
        """Return the index in `values` of a counter's first number.

        Return None for a new counter if the block or the disk is full.
        """
        number = self._counters.get(label)
        if number is None:
            number = len(self._counters)
            if number >= _MOST:
                return None
            start = _HEADER + number * _ENTRY
            try:
                _populate(self._memory, start * 8, _ENTRY * 8)
            except OSError:
                return None
            text = "\t".join(label).encode("utf-8", "replace")[:_TEXT]
            self._bytes[start * 8 : start * 8 + _TEXT] = text.ljust(_TEXT, b"\0")
            self.values[start + _LABEL + _SINCE] = monotonic()
            self._counters[label] = number
            # last, so that a reader or the next writer sees complete counters only
            self.values[_Header.USED] = number + 1
        return _HEADER + number * _ENTRY + _LABEL

    def about_to_fork(self) -> None:
        """Clear the last child from the header. That child has ended. The counters keep its counts."""
        for each in (_Header.PID, _Header.HEARTBEAT, _Header.RUNNING, _Header.IS_READY):
            self.values[each] = 0.0

    def forked(self, pid: int) -> None:
        self.values[_Header.FORKED_AT] = monotonic()
        self.values[_Header.PID] = pid

    def beat(self, is_ready: bool, running: int) -> None:
        """Store a heartbeat. `running`: the number of runs in progress."""
        self.values[_Header.HEARTBEAT] = monotonic()
        self.values[_Header.RUNNING] = running
        self.values[_Header.IS_READY] = is_ready

    def is_of(self, pid: int) -> bool:
        return self.values[_Header.PID] == pid

    @property
    def is_free(self) -> bool:
        """Whether no process uses the block: its master is dead, and so is its child, if there is one."""
        return not any(is_alive(int(self.values[each])) for each in (_Header.MASTER, _Header.PID))

    def take(self, text: str, master: int) -> None:
        """Store the text of the block and the process id of its master; 0 stands for no master."""
        self.about_to_fork()
        self._bytes[_TEXT : 2 * _TEXT] = text.encode()[:_TEXT].ljust(_TEXT, b"\0")
        self.values[_Header.MASTER] = master

    def close(self) -> None:
        self.values.release()
        self._bytes.release()
        self._memory.close()


class CounterFile:
    """Assigns blocks of the file of counters to names. Used in the master."""

    def __init__(self, path: Path, inode: int) -> None:
        self.path = path
        self._inode = inode
        self._blocks: dict[str, CounterBlock] = {}

    @classmethod
    def create(cls, path: Path, is_upgrade: bool) -> CounterFile:
        """Make a new file. A binary upgrade continues the old file if its layout is the same. Raises OSError."""
        if is_upgrade:
            with suppress(OSError, CounterFileError):
                descriptor = _open(path, os.O_RDWR)
                try:
                    return cls(path, os.fstat(descriptor).st_ino)
                finally:
                    os.close(descriptor)
        import tempfile  # noqa: PLC0415 – `pschedd status --json` need not wait for it

        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            os.fchmod(descriptor, _MODE)
            os.write(descriptor, _LAYOUT)
            os.ftruncate(descriptor, _FIRST)
            Path(name).replace(path)
            return cls(path, os.fstat(descriptor).st_ino)
        except BaseException:
            Path(name).unlink()
            raise
        finally:
            os.close(descriptor)

    def block(self, name: str, text: str = "") -> CounterBlock | None:
        """Return the block of this name, or None if the file cannot be used.

        The block may have counts of a master that has ended.
        """
        found = self._blocks.get(name)
        if found is None:
            try:
                found = self._allot("\t".join([name, text]))
            except (OSError, CounterFileError) as error:
                import logging  # noqa: PLC0415 – as in `create`

                logging.getLogger(__name__).warning("the events of %s are not counted: %s", name, error)
                return None
            self._blocks[name] = found
        return found

    def release(self, name: str) -> None:
        """Free a block. The next process that gets the block continues its counts."""
        block = self._blocks.pop(name, None)
        if block is not None:
            block.take("", master=0)
            block.close()

    def child_forked(self, name: str, pid: int) -> None:
        if name in self._blocks:
            self._blocks[name].forked(pid)

    def child_ended(self, pid: int) -> bool:
        """Clear the header of the child `pid`, because the child has ended. Return whether the child had a block."""
        for block in self._blocks.values():
            if block.is_of(pid):
                block.about_to_fork()
                return True
        return False

    def unmap(self, but: CounterBlock | None = None) -> None:
        for block in self._blocks.values():
            if block is not but:
                block.close()
        self._blocks.clear()

    def close(self) -> None:
        """Unmap the file. If no other living master has blocks in the file, remove it."""
        self.unmap()
        with suppress(OSError, CounterFileError):
            nodes = read_counters(self.path).processes
            others = (each.master for each in nodes if each.master != os.getpid())
            if self.path.stat().st_ino == self._inode and not any(map(is_alive, others)):
                self.path.unlink()

    def _allot(self, text: str) -> CounterBlock:
        descriptor = _open(self.path, os.O_RDWR)
        try:
            _lock(descriptor, self.path)
            found = os.fstat(descriptor)
            if found.st_ino != self._inode:
                raise CounterFileError(
                    f"{self.path} was replaced by another master; each master needs its own metrics_file"
                )
            count = (found.st_size - _FIRST) // _BLOCK
            for number in range(count + 1):
                if number == count:
                    os.ftruncate(descriptor, _FIRST + (number + 1) * _BLOCK)
                memory = mmap.mmap(descriptor, _BLOCK, offset=_FIRST + number * _BLOCK)
                try:
                    _populate(memory, 0, _HEADER * 8)
                except OSError:
                    memory.close()
                    if number == count:
                        os.ftruncate(descriptor, found.st_size)  # else readers would read a page that may not exist
                    raise
                block = CounterBlock(memory)
                if block.is_free:
                    block.take(text, os.getpid())
                    return block
                block.close()
            raise AssertionError("a new block is not free")
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # mmap has duplicated the descriptor, so close does not unlock it
            os.close(descriptor)


class Process(NamedTuple):
    """The process of a block. `pid`: 0 if the block has no process. Times are monotonic seconds, 0 for not yet.

    `running`: how many runs were in progress at the last heartbeat.
    """

    name: str
    text: str
    master: int
    pid: int
    forked_at: float
    heartbeat: float
    running: int
    is_ready: bool


class Counters(NamedTuple):
    """The numbers of a node since its start, in the order in which the counters were first used.

    `processes`: the processes of all masters in the file. `sums`: the numbers of each counter, added up over all
    processes, including processes that have ended.
    """

    processes: Sequence[Process]
    sums: Mapping[Label, Sequence[float]]

    @property
    def living(self) -> list[Process]:
        """The processes whose master is alive."""
        return [each for each in self.processes if is_alive(each.master)]


def read_counters(path: Path) -> Counters:
    """Read the file of counters of a node. Raises CounterFileError."""
    try:
        descriptor = _open(path, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as memory, memoryview(memory) as view:
                return _read(view)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CounterFileError(
            f"{path}: {error.strerror}; is the daemon running, and may this user read the file?"
        ) from None


def _read(view: memoryview) -> Counters:
    processes: list[Process] = []
    sums: dict[Label, list[float]] = {}
    for start in range(_FIRST, len(view) - _BLOCK + 1, _BLOCK):
        with view[start : start + _BLOCK] as block, block.cast("d") as values:
            name, _, text = _text(block[_TEXT : 2 * _TEXT]).partition("\t")
            header = values[: len(_Header)].tolist()
            master, pid, forked_at, heartbeat, running, is_ready = header[1:]
            found = Process(name, text, int(master), int(pid), forked_at, heartbeat, int(running), bool(is_ready))
            processes.append(found)
            for label, numbers in _counters(values, block):
                known = sums.get(label)
                if known is None:
                    sums[label] = numbers
                else:
                    since = min(known[_SINCE], numbers[_SINCE])
                    sums[label] = [a + b for a, b in zip(known, numbers, strict=True)]
                    sums[label][_SINCE] = since
    return Counters(processes, dict(sorted(sums.items(), key=lambda each: each[1][_SINCE])))


def _counters(values: memoryview[float], block: memoryview) -> Iterator[tuple[Label, list[float]]]:
    for number in range(min(int(values[_Header.USED]), _MOST)):
        start = _HEADER + number * _ENTRY
        label = _text(block[start * 8 : start * 8 + _TEXT])
        numbers: list[float] = [*values[start + _LABEL : start + _ENTRY]]
        yield tuple(label.split("\t")), numbers


def _populate(memory: mmap.mmap, start: int, length: int) -> None:
    """Allocate pages of the file before they are written. Raises OSError if the disk is full.

    Without this, a write to a page for which the disk has no space ends the process (SIGBUS). Kernels without
    MADV_POPULATE_WRITE allocate nothing here.
    """
    if sys.platform != "linux":
        return
    first = start - start % mmap.PAGESIZE
    try:
        memory.madvise(_POPULATE_WRITE, first, start + length - first)
    except OSError as error:
        if error.errno == errno.EFAULT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        if error.errno != errno.EINVAL:
            raise


def is_alive(pid: int) -> bool:
    """Return whether a process with this process id exists; False for 0."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _text(part: memoryview) -> str:
    return bytes(part).rstrip(b"\0").decode("utf-8", "replace")


def _lock(descriptor: int, path: Path) -> None:
    """Lock the file, so that two masters of a binary upgrade do not take the same block.

    A master holds the lock for microseconds. Raises CounterFileError if another process holds it for more than 0.1 s.
    """
    until = monotonic() + _LONGEST_LOCK
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() >= until:
                raise CounterFileError(f"{path} is locked by another process (fuser {path} names it)") from None
            time.sleep(0.001)
        else:
            return


def _open(path: Path, flags: int) -> int:
    """Open a file of this layout. Raises OSError and CounterFileError."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        is_ours = stat.S_ISREG(found.st_mode) and os.pread(descriptor, len(_LAYOUT), 0) == _LAYOUT
        if not is_ours or found.st_size < _FIRST:
            remedy = "name the metrics_file of a running daemon, or restart a daemon of another version"
            raise CounterFileError(f"{path} does not contain counters of this version of psched; {remedy}")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
