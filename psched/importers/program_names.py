"""Chooses keys: short names of the programs that commands run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

_LONGEST = 60
_SEPARATORS = re.compile(r"&&|\|\||[;|&\n]")
_PASSED_OVER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*|[0-9]*[<>].*|-.*|[0-9.]+[smhd]?|.*\.lock", re.DOTALL)
"""Words that precede a program's name: assignments, redirections, options, durations and lock files."""
_TESTS = frozenset(
    ["[", "[[", "test", "cd", "export", "set", "umask", "sleep", "source", ".", "fi", "done", "true", ":"]
)
"""Words of the shell that give no name to a job. The name comes from the next command of the line."""
_KEYWORDS = re.compile(r"^(?:[\s({!]|(?:if|then|else|elif|while|do)\b)*")
_RUNNERS = re.compile(
    r"env|exec|command|nice|ionice|chronic|sudo|su|flock|timeout|time|systemd-cat|setsid|nohup|(ba|da|z|k)?sh|perl|ruby"
    r"|node|php[0-9.]*|python[0-9.]*|pypy[0-9]*|Rscript|java|uv|poetry|pipenv|bundle|run"
)
"""Programs that run the program that their arguments name."""
_UNUSUAL = re.compile(r"[^A-Za-z0-9_.@-]+")


def name_of_shell_command(command: str) -> str:
    """Return a name, such as `backup.sh`, for a shell command."""
    for part in _SEPARATORS.split(command):
        words = _words(_KEYWORDS.sub("", part).rstrip(")} "))
        if words and words[0] not in _TESTS:
            return name_of_arguments(words)
    return "job"


def name_of_arguments(arguments: Iterable[str]) -> str:
    names = [PurePosixPath(word).name for word in arguments if word and not _PASSED_OVER.fullmatch(word)]
    programs = [name for name in names if not _RUNNERS.fullmatch(name)] or names or ["job"]
    count = 2 if programs[0] == "run-parts" else 1
    return plain_name("-".join(programs[:count]))


def plain_name(text: str) -> str:
    """Return at most 60 characters of the text.

    Each sequence of characters except letters, digits and `_ . @ -` becomes a single dash.
    """
    return _UNUSUAL.sub("-", text).strip("-.")[:_LONGEST] or "job"


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
