"""What error messages are made of: the "did you mean", and a value as it was given. Used in every process."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 60
"""Characters of a value that an error message repeats."""
_BITS = 13_000
"""A whole number with more is told by its length: Python refuses to print those of more than 4,300 digits."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the known word closest to `word` in any case, or nothing when none is close."""
    by_folded = {name.casefold(): name for name in known}
    close = get_close_matches(word.casefold()[:100], by_folded, n=1)
    return f"; did you mean {by_folded[close[0]]!r}?" if close else ""


def shown(value: object, longest: int = _LONGEST) -> str:
    """Return `value` for an error message: as Python writes it, cut when it is long, whatever it is."""
    if isinstance(value, int) and value.bit_length() > _BITS:
        return f"a whole number of about {int(value.bit_length() * 0.30103) + 1} digits"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 – a caller's object, which may fail at anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= longest else f"{text[:longest]}…"
