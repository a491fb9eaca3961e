"""The Lua scripts, put together from their parts when they are first used. Any process."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

_FOLDER = Path(__file__).with_name("scripts")
_RECORDED = ("rows", "schedules", "ledger")
"""Scripts that write the ledger, or look something up in it, begin with these."""
_WITH_LEDGER = ("add", "modify", "delete", "settled", "trim", "told")
_COMPOSED = {
    **{f"schedules/{verb}": (*_RECORDED, f"schedules/{verb}") for verb in _WITH_LEDGER},
    "schedules/advance": (*_RECORDED, "schedules/advance", "schedules/alone"),
    "schedules/together": (*_RECORDED, "schedules/advance", "schedules/together"),
    "queue/submit": ("rows", "queue", "submission", "queue/submit"),
    "queue/hand_over": (*_RECORDED, "schedules/advance", "queue", "submission", "queue/hand_over"),
}
"""Scripts with parts of their own; all others are `rows`, their kind, `leases` and themselves."""


@dataclass(frozen=True, slots=True)
class Script:
    """One operation: the text that the server runs, and the digest by which it knows it."""

    name: str
    text: str
    digest: str = field(init=False)
    """What EVALSHA names it by."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


class Scripts:
    """The scripts of one kind of table, `schedules` or `queue`, by their verbs. Safe to use from several threads."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._loaded: dict[str, Script] = {}

    def __getitem__(self, verb: str) -> Script:
        if verb not in self._loaded:
            self._loaded[verb] = compose(self._kind, verb)
        return self._loaded[verb]


def compose(kind: str, verb: str) -> Script:
    """Return the script of `verb`: that of its kind, or the one that both kinds have in common."""
    name = f"{kind}/{verb}"
    if not (_FOLDER / f"{name}.lua").exists():
        parts: tuple[str, ...] = ("rows", kind, "leases", f"leases/{verb}")
    else:
        parts = _COMPOSED.get(name, ("rows", kind, "leases", name))
    return Script(name, "\n".join((_FOLDER / f"{part}.lua").read_text(encoding="utf-8") for part in parts))
