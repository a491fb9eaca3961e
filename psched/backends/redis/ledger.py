"""The ledger of schedules on Redis: reading it, and trimming what is old. Used in children and clients."""

from __future__ import annotations

import contextlib
import heapq
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from psched.backends.common.rows import read_change, read_row
from psched.backends.redis.rows import milliseconds
from psched.store.ledger import Change, LedgerFilter, LedgerRow

_PAGE = 500
"""Entries read at once."""

Run = Callable[..., Any]
"""Runs the script of a verb, and returns its answer."""


class RedisLedger:
    """`Ledger` in keys beside the schedules'."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._after = chr(random.randrange(0x20, 0x7F))  # not every process begins with the same key

    def rows(self, wanted: LedgerFilter) -> Iterator[LedgerRow]:
        """Yield entries: of one key in the order of occurrences, of all as they were settled."""
        if wanted.key is not None:
            found = (entry for entry in self._of_key(wanted.key, wanted) if entry["trouble"] or not wanted.failed)
            return map(read_row, found)
        kinds = [self._settled(trouble, wanted) for trouble in ((1,) if wanted.failed else (0, 1))]
        return (read_row(entry) for _, entry in heapq.merge(*kinds, key=lambda found: found[0]))

    def row_before(self, key: str, time: int, version: int) -> LedgerRow | None:
        """Return the last entry by this definition of `key` whose first occurrence comes before `time`, or None."""
        found = self._run("before", key, milliseconds(time), version)
        return None if found is None else read_row(_entry(key, found))

    def changes(self, key: str) -> list[Change]:
        """Return the changes of a schedule's definition that are kept, the oldest first."""
        return [read_change(_object(change) | {"key": key}) for change in self._run("changes", key)]

    def keys(self) -> Iterator[str]:
        """Yield the keys with changes on record, in order."""
        after = b""
        while page := self._run("recorded", after, _PAGE):
            yield from (key.decode(errors="replace") for key in page)
            after = page[-1]

    def trim(self, retention: float, count: int, limit: int, key: str | None) -> bool:
        """Delete about `limit` entries that are too old, and of `key` those before its last `count`."""
        given = [round(retention * 1000), "" if key is None else key, count, limit, self._after]
        deleted, after = self._run("trim", *given)
        self._after = after
        return int(deleted) >= limit

    def _of_key(self, key: str, wanted: LedgerFilter) -> Iterator[Mapping[str, Any]]:
        """Yield entries of a key; those of the page's last occurrence are read again with the next one."""
        begin, end = _bound(wanted.since, "-inf"), _bound(wanted.until, "+inf")
        seen: set[bytes] = set()
        while found := self._run("entries", key, begin, end, _PAGE + len(seen)):
            page = [entry for entry in found[::2] if entry not in seen]
            yield from (_entry(key, entry) for entry in page)
            if len(page) < _PAGE:
                return
            begin = found[-1]
            seen = {entry for entry, time in zip(found[::2], found[1::2], strict=True) if time == begin}

    def _settled(self, trouble: int, wanted: LedgerFilter) -> Iterator[tuple[tuple[int, bytes], Mapping[str, Any]]]:
        """Yield entries of all keys, each with when it was settled, in microseconds, and its place."""
        begin, end = _bound(wanted.since, "-inf", "000"), _bound(wanted.until, "+inf", "999")
        seen: set[bytes] = set()
        while found := self._run("settled", trouble, begin, end, _PAGE + len(seen)):
            page = [row for row in found if row[1] not in seen]
            for micros, place, key, entry in page:
                if entry:
                    yield (int(micros), place), _entry(key.decode(errors="replace"), entry)
            if len(page) < _PAGE:
                return
            begin = found[-1][0]
            seen = {row[1] for row in found if row[0] == begin}


def _bound(seconds: float | None, otherwise: str, finer: str = "") -> Any:
    return otherwise if seconds is None else f"{milliseconds(seconds)}{finer}"


def _entry(key: str, entry: bytes) -> Mapping[str, Any]:
    return _object(entry) | {"key": key}


def _object(text: bytes) -> dict[str, Any]:
    """Return a JSON object by its members; what somebody has spoilt has none."""
    found: dict[str, Any] = defaultdict(_nothing)
    with contextlib.suppress(ValueError, TypeError):
        found.update(json.loads(text.decode(errors="replace")))
    return found


def _nothing() -> None:
    return None
