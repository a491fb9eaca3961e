"""Reads a YAML file of schedules, and reports each error with its line.

The options of a schedule are the fields of `NewSchedule`. A new field can be used in a file without a change here.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from psched.config.yaml_file import Document, parse_document, read_document
from psched.error_messages import did_you_mean, shown
from psched.errors import ConfigError, NotSupportedError
from psched.keys import check_key
from psched.model import Instant, NewSchedule
from psched.retry_wait import Backoff
from psched.schedules_file.declared import FORMS, DeclaredSchedules
from psched.time_text import parse_seconds

_NOT_DECLARED = ("key", "owner", "next_time", "next_run_time")
"""The fields of `NewSchedule` that are not options of a schedule in a file."""
_KEYS = ("owner", "defaults", "schedules")
_MOST_FAULTS = 20
"""How many errors of the file one error message names."""
_EXAMPLE = "owner: billing"

Check = Callable[[NewSchedule], object]
"""Called with a schedule. Raises ConfigError, ValueError or NotSupportedError if the schedule cannot be added."""


def read_schedules_file(path: Path, check: Check | None = None) -> DeclaredSchedules:
    """Return the schedules in the file. `check`: called with each schedule, such as `ScheduleCollection.check`.

    Raises ConfigError with a line of text for each of the first 20 errors: the file, the line in the file, and the key.
    """
    return _FileReader(read_document(path), str(path), check).declared()


def parse_schedules(text: str, source: str, check: Check | None = None) -> DeclaredSchedules:
    """Return the schedules in the text of a file, like `read_schedules_file`.

    `source`: the name of the file, for messages.
    """
    return _FileReader(parse_document(text, source), source, check).declared()


@cache
def options() -> Mapping[str, str]:
    """Return the options of a schedule, each with the kind of its value: `seconds`, `wait`, `instant` or `any`."""
    hints = typing.get_type_hints(NewSchedule, include_extras=True)
    return {name: _kind(hint) for name, hint in hints.items() if name not in _NOT_DECLARED}


def _kind(hint: Any) -> str:
    choices = (hint, *typing.get_args(hint))
    if Instant in choices:
        return "instant"
    return "wait" if Backoff in choices else "seconds" if float in choices else "any"


@dataclass
class _FileReader:
    document: Document
    source: str
    check: Check | None
    faults: list[str] = field(default_factory=list)

    def declared(self) -> DeclaredSchedules:
        content = self.document.content
        if not isinstance(content, dict):
            raise ConfigError(f"{self.source}: expected `owner:` and `schedules:`, got {shown(content)}; write both")
        for name in content:
            if name not in _KEYS:
                self._fault((name,), f"unknown key; expected {' or '.join(_KEYS)}{did_you_mean(str(name), _KEYS)}")
        owner = self._owner(content.get("owner"))
        schedules = tuple(self._schedules(self._mapping(content, "schedules"), self._defaults(content)))
        if self.faults:
            more = len(self.faults) - _MOST_FAULTS
            lines = [*self.faults[:_MOST_FAULTS], *([f"{self.source}: … and {more} more faults"] if more > 0 else [])]
            raise ConfigError(*lines)
        return DeclaredSchedules(self.source, owner, schedules, lambda key: self._place(("schedules", key)))

    def _owner(self, owner: object) -> str:
        if owner is None:
            self._fault(("owner",), f"missing; name the program or team that owns these schedules, as in `{_EXAMPLE}`")
            return ""
        try:
            return check_key(owner, "owner")
        except ValueError as error:
            self._fault(("owner",), str(error))
            return ""

    def _mapping(self, content: dict[Any, Any], name: str) -> dict[Any, Any]:
        """Return the mapping below a key, or an empty mapping if there is no such key.

        A file without schedules must say `schedules: {}`.
        """
        if name not in content and name == "schedules":
            self._fault((name,), "missing; give a mapping from keys to schedules, or {} for none")
        found = content.get(name, {})
        if isinstance(found, dict):
            return found
        got = "nothing; write {} for none" if found is None else shown(found)
        self._fault((name,), f"expected a mapping, got {got}")
        return {}

    def _defaults(self, content: dict[Any, Any]) -> dict[str, Any]:
        return dict(self._options(self._mapping(content, "defaults"), ("defaults",)))

    def _schedules(self, content: dict[Any, Any], defaults: dict[str, Any]) -> Iterator[NewSchedule]:
        for key, given in content.items():
            path = ("schedules", str(key))
            if not isinstance(key, str):
                self._fault(path, f"the key is read as {shown(key)}, not as text; put it in quotes")
            elif not isinstance(given, dict):
                example = "a mapping like {type: report, cron: '0 3 * * *'}"
                self._fault(path, f"expected {example}, got {'nothing' if given is None else shown(given)}")
            else:
                before = len(self.faults)
                fields = defaults | dict(self._options(given, path))
                for name in ("type", "cron"):
                    if fields.get(name) is None:
                        self._fault(path, f"{name} is missing; {_REMEDY[name]}")
                if len(self.faults) == before:
                    yield from self._checked(key, fields, path)

    def _checked(self, key: str, fields: dict[str, Any], path: tuple[str, ...]) -> Iterator[NewSchedule]:
        new = NewSchedule(key, **fields)
        try:
            if self.check is not None:
                self.check(new)
        except (ConfigError, NotSupportedError, ValueError) as error:
            named = next((name for name in options() if str(error).startswith((f"{name} ", f"{name}:"))), None)
            self._fault(path if named is None else (*path, named), str(error))
        else:
            yield new

    def _options(self, given: dict[Any, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        """Yield the fields of `NewSchedule` with the values of the options."""
        forms = [name for name in FORMS if name in given]
        if len(forms) > 1:
            self._fault(path, f"{' and '.join(forms)} are given; give one of them")
        kinds = options()
        for name, value in given.items():
            if name not in kinds and name not in FORMS:
                known = dict.fromkeys((*FORMS, *kinds))
                hint = did_you_mean(str(name), known, more_follows=True)
                self._fault((*path, str(name)), f"unknown option{hint}; expected one of {', '.join(known)}")
            elif name in FORMS:
                if isinstance(value, str | int | float) and not isinstance(value, bool):
                    yield "cron", FORMS[name].format(value)
                else:
                    self._fault((*path, name), f"expected text, got {shown(value)}; {_REMEDY['cron']}")
            else:
                try:
                    yield name, _converted(kinds[name], value)
                except ValueError as error:
                    self._fault((*path, name), str(error))

    def _fault(self, path: tuple[str, ...], message: str) -> None:
        is_named = len(self.faults) < _MOST_FAULTS  # finding the line of an error takes longer than finding the error
        self.faults.append(f"{self._place(path)}: {message}" if is_named else "")

    def _place(self, path: tuple[str, ...]) -> str:
        line = self.document.line(*path)
        return f"{self.source}{'' if line is None else f':{line}'}: {'.'.join(map(str, path))}"


_REMEDY = {
    "type": "name the type of the schedule's tasks, as in `type: report`",
    "cron": 'give one of cron, every and at, as in `cron: "0 3 * * *"`',
}


def _converted(kind: str, value: Any) -> Any:
    if isinstance(value, dict) and kind == "wait":  # a wait that grows
        return {name: _converted("seconds", each) for name, each in value.items()}
    if not isinstance(value, str) or kind == "any":
        return value
    try:
        if ".." in value and kind == "wait":  # a wait that grows, in the syntax of command options
            first, _, limit = value.partition("..")
            return {"first": _number(parse_seconds(first)), "limit": _number(parse_seconds(limit))}
        return _instant(value) if kind == "instant" else _number(parse_seconds(value))
    except (ValueError, OverflowError):
        expected = "seconds or a duration such as 90s, 5m, 2h or 1d"
        if kind == "wait":
            expected += ", or FIRST..LIMIT such as 10s..5m"
        elif kind == "instant":
            expected = "a date with a time zone, such as 2026-12-01T08:00+01:00, or unix seconds"
        raise ValueError(f"expected {expected}, got {shown(value)}") from None


def _instant(text: str) -> float:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError
    return _number(moment.timestamp())


def _number(value: float) -> float:
    return int(value) if value.is_integer() else value
