"""The Lua scripts in `scripts/`. Each operation on a table runs one script.

A file begins with the functions of its topic. Scripts follow, each after a line such as `--- script queue/purge:
common, queue`. This line begins the script `purge` of queues, which needs the functions of common.lua and queue.lua.
`KIND` stands for `schedules` or `queue`, in scripts that both kinds have.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).with_name("scripts")
_HEADER = re.compile(r"^--- script ([\w/]+): (.*)\n", re.MULTILINE)


@dataclass(frozen=True)
class Script:
    """One operation: the text that the server runs, and its SHA-1 digest for EVALSHA."""

    text: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "digest", digest)


def _read_files() -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Return the functions of each file. Also return, for each script, the files that it needs and its own lines."""
    functions: dict[str, str] = {}
    scripts: dict[str, tuple[str, str]] = {}
    for path in _FOLDER.glob("*.lua"):
        functions[path.stem], *rest = _HEADER.split(path.read_text(encoding="utf-8"))
        scripts.update(zip(rest[::3], zip(rest[1::3], rest[2::3], strict=True), strict=True))
    return functions, scripts


_FUNCTIONS, _SCRIPTS = _read_files()
"""Read at the import, because a child may have no free file descriptor later, and so that children share the memory."""


@cache
def compose(kind: str, verb: str) -> Script:
    """Return the script `verb` for tables of `kind`: the functions that it needs, followed by its own lines."""
    needed, lines = _SCRIPTS.get(f"{kind}/{verb}") or _SCRIPTS[f"KIND/{verb}"]
    return Script("\n".join([*(_FUNCTIONS[name] for name in needed.replace("KIND", kind).split(", ")), lines]))
