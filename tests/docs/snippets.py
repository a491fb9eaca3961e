"""The fenced blocks of a Markdown file and what the words after their language ask for.

    ```sh run              executed with bash -eu in the document's own folder
    ```python file=app.py  written there (any language)
    ```yaml load=production  loaded as a configuration with that environment
    ```sql on=mariadb      executed on a server of that kind
    ```sh machine=step     executed on a machine with systemd, by tests/systemd
    ```sh guide=NAME       executed by scripts/test-guides beside another system (python: the name of its file)
    ```sh norun=reason     shown only, and why

`text`, `mermaid` and `ini` blocks need nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^( *)```(\S+)([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Snippet:
    """One block of a document. `action`, `argument`: what the words after the language ask for."""

    document: Path
    line: int
    language: str
    action: str
    argument: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.name}:{self.line}"


def snippets(document: Path) -> list[Snippet]:
    """Return the blocks of a document, in order."""
    content = document.read_text(encoding="utf-8")
    return [_snippet(document, content, match) for match in _FENCE.finditer(content)]


def _snippet(document: Path, content: str, match: re.Match[str]) -> Snippet:
    indent, language, info, text = match.groups()
    action, _, argument = info.strip().partition("=")
    line = content.count("\n", 0, match.start()) + 1
    unindented = "".join(row.removeprefix(indent) for row in text.splitlines(keepends=True))
    return Snippet(document, line, language, action, argument, unindented)
