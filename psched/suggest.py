"""Parts of error messages: "did you mean", and a value as the caller gave it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_MAX_LENGTH = 60
"""Characters of a value that an error message shows."""
_MAX_BITS = 13_000
"""A longer integer is described by its length: Python refuses to print more than 4,300 digits."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the known word closest to `word` in any case, or an empty string."""
    by_folded = {name.casefold(): name for name in known}
    close = get_close_matches(word.casefold()[:100], by_folded, n=1)
    return f"; did you mean {by_folded[close[0]]!r}?" if close else ""


def shown(value: object, longest: int = _MAX_LENGTH) -> str:
    """Return the repr of any value for an error message, cut to `longest` characters."""
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"a whole number of about {int(value.bit_length() * 0.30103) + 1} digits"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 – a caller's object, which may fail at anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= longest else f"{text[:longest]}…"
