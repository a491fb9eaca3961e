"""The Lua scripts: each operation is one script, composed from sections of the files in `scripts/`.

A file begins with the functions of its topic. A line such as `--- script queue/retire: common, queue, leases` begins a
script and names the files and parts that come before it; `--- part advance_row` begins a function that only such lines
name. `KIND` stands for the kind of the table, `schedules` or `queue`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).with_name("scripts")
_HEADER = re.compile(r"^--- (?:part|script) ([\w/]+)(?:: (.*))?\n", re.MULTILINE)


@dataclass(frozen=True)
class Script:
    """One operation: the text that the server runs, and the SHA-1 digest that EVALSHA takes."""

    text: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "digest", digest)


@cache
def compose(kind: str, verb: str) -> Script:
    """Return the script of `verb` for tables of `kind`: their own, or the one in leases.lua that both kinds share."""
    sections = _sections()
    needed, text = sections.get(f"{kind}/{verb}") or sections[f"leases/{verb}"]
    parts = [sections[kind if name == "KIND" else name][1] for name in needed]
    return Script("\n".join([*parts, text]))


@cache
def _sections() -> dict[str, tuple[list[str], str]]:
    """Return each section's text with the names of what it needs; the beginning of a file has the file's name."""
    sections: dict[str, tuple[list[str], str]] = {}
    for path in _FOLDER.glob("*.lua"):
        beginning, *rest = _HEADER.split(path.read_text(encoding="utf-8"))
        sections[path.stem] = ([], beginning)
        for name, needed, text in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
            sections[name] = (needed.split(", ") if needed else [], text)
    return sections
