"""Writes schedules as YAML that `reader` can read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import yaml

from psched.model import NewSchedule
from psched.retry_wait import Backoff
from psched.schedules_file.reader import options

_DEFAULTS = NewSchedule._field_defaults
_BREAKS = frozenset("\n\r\x85\u2028\u2029\ufeff")
_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


class _QuotingDumper(yaml.SafeDumper):
    """Quotes text with line breaks, because YAML would join its lines. YAML knows more line breaks than Python."""

    def represent_str(self, text: str) -> yaml.ScalarNode:
        has_breaks = not _BREAKS.isdisjoint(text)
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if has_breaks else None)


_QuotingDumper.add_representer(str, _QuotingDumper.represent_str)


def schedules_text(owner: str, schedules: Sequence[NewSchedule]) -> Iterator[str]:
    """Yield the lines of a file that declares these schedules, in this order.

    Options with their default values are left out. If each schedule has a time zone, the most frequent time zone
    becomes the default of the file.
    """
    zones = Counter(schedule.timezone for schedule in schedules if schedule.timezone is not None)
    zone = zones.most_common(1)[0][0] if zones and all(each.timezone is not None for each in schedules) else None
    yield from _lines({"owner": owner}, "")
    if zone is not None:
        yield from _lines({"defaults": {"timezone": zone}}, "")
    if not schedules:
        yield "schedules: {}"
        return
    yield "schedules:"
    for schedule in schedules:
        yield from _lines({schedule.key: dict(_given(schedule, zone))}, "  ")


def _given(schedule: NewSchedule, zone: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the options that differ from their defaults, with values in the form that a person would write."""
    for name, kind in options().items():
        value = getattr(schedule, name)
        default = zone if name == "timezone" else _DEFAULTS.get(name, ...)
        if value != default:
            if isinstance(value, Backoff):
                value = {part: duration(wait) for part, wait in asdict(value).items()}
            elif isinstance(value, Mapping):
                value = dict(value)
            yield name, duration(value) if kind in ("seconds", "wait") else value


def duration(value: Any) -> Any:
    """Return seconds that are whole minutes, hours or days as text such as `15m`; return other values unchanged."""
    if not isinstance(value, int | float) or not float(value).is_integer():
        return value
    unit, size = next(((unit, size) for unit, size in _UNITS if value % size == 0), ("", 1))
    return f"{int(value // size)}{unit}" if unit and value else int(value)


def _lines(value: dict[str, Any], indent: str) -> Iterator[str]:
    text = yaml.dump(
        value, Dumper=_QuotingDumper, allow_unicode=True, sort_keys=False, default_flow_style=False, width=1000
    )
    return (f"{indent}{line}" for line in text.rstrip("\n").split("\n"))
