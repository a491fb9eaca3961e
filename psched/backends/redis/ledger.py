"""Reads and trims the ledger on Redis. The scripts of schedules write it."""

from __future__ import annotations

import contextlib
import heapq
import json
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from psched.backends.common.rows import milliseconds, read_change, read_ledger_row, read_output, read_run_times
from psched.model import Claim
from psched.store.ledger import (
    KEPT_OUTPUTS,
    Change,
    Definition,
    DefinitionTimes,
    KeptOutput,
    LedgerFilter,
    LedgerRow,
    Output,
)

_PAGE = 500
"""The maximum number of entries that one script reads."""
_EXAMINED = 1000
"""The maximum number of entries that one script searches for the last entries of some definitions."""
_SCHEDULES = 32
"""The maximum number of schedules whose entries or changes one script reads."""

Run = Callable[..., Any]
"""Runs the script `verb` with arguments, and returns the script's answer. The first argument is `verb`."""


class RedisLedger:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._after = chr(random.randrange(0x20, 0x7F))  # a random start, so that processes trim different keys first

    def rows(self, wanted: LedgerFilter) -> Iterator[LedgerRow]:
        if wanted.last is None:
            return self._rows(wanted, min(_PAGE, wanted.page or _PAGE))
        newest = self._rows(wanted, min(_PAGE, wanted.last), backwards=True)
        return reversed(list(islice(newest, wanted.last)))

    def _rows(self, wanted: LedgerFilter, page: int, backwards: bool = False) -> Iterator[LedgerRow]:
        if wanted.key is not None:
            bounds = _bound(wanted.since, "-inf"), _bound(wanted.until, "+inf")
            found = self._by_score("entries", wanted.key, *bounds, page, backwards)
            entries = (_entry(wanted.key, entry) for _, entry in found)
            return (read_ledger_row(entry) for entry in entries if entry["trouble"] or not wanted.failed)
        # The scores of settled entries are microseconds.
        bounds = _bound(wanted.since, "-inf", "000"), _bound(wanted.until, "+inf", "999")
        kinds = [
            self._by_score("settled_entries", trouble, *bounds, page, backwards)
            for trouble in ((1,) if wanted.failed else (0, 1))
        ]
        settled = heapq.merge(*kinds, key=lambda row: (int(row[0]), row[1]), reverse=backwards)
        return (read_ledger_row(_entry(key.decode(errors="replace"), entry)) for _, _, key, entry in settled if entry)

    def first_rows(
        self, keys: Collection[str], first: int, since: float | None = None, until: float | None = None
    ) -> Mapping[str, Sequence[LedgerRow]]:
        bounds = _bound(since, "-inf"), _bound(until, "+inf")
        return self._rows_of_each(keys, *bounds, first, backwards=False)

    def last_rows(
        self, keys: Collection[str], last: int, until: float | None = None
    ) -> Mapping[str, Sequence[LedgerRow]]:
        return self._rows_of_each(keys, "-inf", _bound(until, "+inf"), last, backwards=True)

    def _rows_of_each(
        self, keys: Collection[str], begin: Any, end: Any, most: int, backwards: bool
    ) -> Mapping[str, Sequence[LedgerRow]]:
        names = list(dict.fromkeys(keys))
        found: dict[str, Sequence[LedgerRow]] = {}
        for start in range(0, len(names), _SCHEDULES):
            part = names[start : start + _SCHEDULES]
            given = (begin, end, most, int(backwards))
            for key, entries in zip(part, self._run("entries_of_each", *given, *part), strict=True):
                rows = [read_ledger_row(_entry(key, entry)) for entry in entries]
                found[key] = rows[::-1] if backwards else rows
        return found

    def rows_before(self, time: int, wanted: Collection[Definition]) -> Mapping[Definition, LedgerRow]:
        found: dict[Definition, LedgerRow] = {}
        names = list(wanted)
        for start in range(0, len(names), _SCHEDULES):
            found.update(self._last_entries(names[start : start + _SCHEDULES], milliseconds(time)))
        return found

    def _last_entries(self, wanted: Sequence[Definition], before: int) -> Iterator[tuple[Definition, LedgerRow]]:
        """Yield the last entry of each definition before the time `before`, in unix milliseconds.

        Definitions without such an entry are left out.
        """
        examined = dict.fromkeys(wanted, 0)
        while examined:
            left, most = list(examined), max(_EXAMINED // len(examined), 1)
            given = chain.from_iterable((each.key, each.version, examined[each]) for each in left)
            for each, (count, *entry) in zip(left, self._run("entries_before", before, most, *given), strict=True):
                if entry:
                    yield each, read_ledger_row(_entry(each.key, entry[0]))
                if entry or count < most:
                    del examined[each]
                else:
                    examined[each] += count

    def changes(self, key: str) -> list[Change]:
        return self.changes_of([key])[key]

    def changes_of(self, keys: Collection[str]) -> Mapping[str, list[Change]]:
        names = list(dict.fromkeys(keys))
        found: dict[str, list[Change]] = {}
        for start in range(0, len(names), _SCHEDULES):
            part = names[start : start + _SCHEDULES]
            for key, changes in zip(part, self._run("changes", *part), strict=True):
                found[key] = [read_change(_object(change) | {"key": key}) for change in changes]
        return found

    def changed_since(self, time: float) -> list[str]:
        found: list[str] = []
        after = b""
        while True:
            after, page = self._run("changed_since", after, _PAGE, milliseconds(time))
            found += (key.decode(errors="replace") for key in page)
            if not after:
                return found

    def run_times(self, wanted: Collection[Definition]) -> Mapping[Definition, DefinitionTimes]:
        names = sorted(wanted)
        found = self._run("definitions", *chain.from_iterable(names)) if names else []
        changes = (_object(change) | {"key": name.key} for name, change in zip(names, found, strict=True) if change)
        return dict(map(read_run_times, changes))

    def keys(self, after: str = "") -> Iterator[str]:
        last = after.encode()
        while page := self._run("changed_keys", last, _PAGE):
            yield from (key.decode(errors="replace") for key in page)
            last = page[-1]

    def next_keys(self, after: Collection[str]) -> Mapping[str, str | None]:
        pages = {text: self._run("changed_keys", text.encode(), 1) for text in after}
        return {text: page[0].decode(errors="replace") if page else None for text, page in pages.items()}

    def keep_output(self, claim: Claim, output: Output, retention: float) -> None:
        row, fence = claim.row, claim.lease.fence
        known = {
            "fence": fence,
            "scheduled_time": milliseconds(row.scheduled_time),
            "attempt": max(row.attempts, 1),
            "failed": int(output.failed),
            "result": output.result,
            "output": output.text,
        }
        members = json.dumps(known, separators=(",", ":"))[1:-1]
        self._run("keep_output", row.key, fence, members, KEPT_OUTPUTS, max(milliseconds(retention), 1))

    def outputs(self, key: str) -> list[KeptOutput]:
        return [read_output(_entry(key, output)) for output in self._run("outputs", key)]

    def trim(self, retention: float, count: int, limit: int, key: str | None) -> bool:
        given = [round(retention * 1000), "" if key is None else key, count, limit, self._after]
        deleted, after = self._run("trim", *given)
        self._after = after
        return int(deleted) >= limit

    def _by_score(
        self, verb: str, name: str | int, begin: Any, end: Any, page_size: int, backwards: bool
    ) -> Iterator[Sequence[Any]]:
        """Yield the rows that a script reads from a sorted set, page by page. A row begins with score and member.

        Each further page is read from the last score of the page before, because more members may have this score. Rows
        that were already yielded are left out.
        """
        seen: set[bytes] = set()
        while found := self._run(verb, name, begin, end, page_size + len(seen), int(backwards)):
            page = [row for row in found if row[1] not in seen]
            yield from page
            if len(page) < page_size:
                return
            last = found[-1][0]
            begin, end = (begin, last) if backwards else (last, end)
            seen = {row[1] for row in found if row[0] == last}


def _bound(seconds: float | None, otherwise: str, finer: str = "") -> Any:
    return otherwise if seconds is None else f"{milliseconds(seconds)}{finer}"


def _entry(key: str, entry: bytes) -> Mapping[str, Any]:
    return _object(entry) | {"key": key}


def _object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object into a dict that returns None for a missing key. Invalid JSON gives an empty dict."""
    found: dict[str, Any] = defaultdict(lambda: None)
    with contextlib.suppress(ValueError, TypeError):
        found.update(json.loads(text.decode(errors="replace")))
    return found
