"""`Ledger` on Redis: reads and trims it. The scripts of schedules write it."""

from __future__ import annotations

import contextlib
import heapq
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from psched.backends.common.rows import milliseconds, read_change, read_row
from psched.store.ledger import Change, LedgerFilter, LedgerRow

_PAGE = 500
"""Entries read at once."""

Run = Callable[..., Any]
"""Runs the script of a verb and returns its answer."""


class RedisLedger:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._after = chr(random.randrange(0x20, 0x7F))  # each process starts at another key

    def rows(self, wanted: LedgerFilter) -> Iterator[LedgerRow]:
        if wanted.key is not None:
            found = (entry for entry in self._of_key(wanted.key, wanted) if entry["trouble"] or not wanted.failed)
            return map(read_row, found)
        kinds = [self._settled(trouble, wanted) for trouble in ((1,) if wanted.failed else (0, 1))]
        return (read_row(entry) for _, entry in heapq.merge(*kinds, key=lambda found: found[0]))

    def row_before(self, key: str, time: int, version: int) -> LedgerRow | None:
        found = self._run("entry_before", key, milliseconds(time), version)
        return None if found is None else read_row(_entry(key, found))

    def changes(self, key: str) -> list[Change]:
        return [read_change(_object(change) | {"key": key}) for change in self._run("changes", key)]

    def keys(self) -> Iterator[str]:
        after = b""
        while page := self._run("changed_keys", after, _PAGE):
            yield from (key.decode(errors="replace") for key in page)
            after = page[-1]

    def trim(self, retention: float, count: int, limit: int, key: str | None) -> bool:
        given = [round(retention * 1000), "" if key is None else key, count, limit, self._after]
        deleted, after = self._run("trim", *given)
        self._after = after
        return int(deleted) >= limit

    def _of_key(self, key: str, wanted: LedgerFilter) -> Iterator[Mapping[str, Any]]:
        """Yield entries of a key; each page begins with the last occurrence of the page before, less what was seen."""
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
        """Yield entries of all keys, each with the microseconds and the member of its set."""
        begin, end = _bound(wanted.since, "-inf", "000"), _bound(wanted.until, "+inf", "999")
        seen: set[bytes] = set()
        while found := self._run("settled_entries", trouble, begin, end, _PAGE + len(seen)):
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
    """Return a JSON object whose missing members are None; empty for invalid JSON."""
    found: dict[str, Any] = defaultdict(_nothing)
    with contextlib.suppress(ValueError, TypeError):
        found.update(json.loads(text.decode(errors="replace")))
    return found


def _nothing() -> None:
    return None
