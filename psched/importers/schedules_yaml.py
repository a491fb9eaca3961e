"""Writes the file of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from psched.error_messages import ESCAPES, on_one_line
from psched.importers.entries import Definition, Imported, calendar_commands


class _BlockTextDumper(yaml.SafeDumper):
    """Writes texts of several lines as literal blocks."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_BlockTextDumper.add_representer(str, _text)


def schedules_yaml(imported: Imported, keyed: Sequence[dict[str, Definition]], owner: str) -> str:
    """Return the file of an import's schedules, in order. A comment names the origin of each schedule."""
    lines = [f"# first: {command}" for command in calendar_commands(imported)]
    lines += _lines({"owner": owner, "defaults": {"timezone": imported.timezone, **imported.defaults}})
    lines.append("schedules:" if any(keyed) else "schedules: {}")
    for entry, definitions in zip(imported.entries, keyed, strict=True):
        for key, definition in definitions.items():
            lines.append(f"  # {on_one_line(f'{entry.origin}: {entry.rule}').translate(ESCAPES)}")
            lines += (f"  {line}".rstrip() for line in _lines({key: definition}))
    return "\n".join(lines) + "\n"


def _lines(content: dict[str, Any]) -> list[str]:
    text = yaml.dump(content, Dumper=_BlockTextDumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text.rstrip("\n").split("\n")
