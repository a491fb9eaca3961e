"""What the log says of errors that others raised. In children."""

from __future__ import annotations

from psched.backends import is_driver_error


def is_refusal(error: BaseException) -> bool:
    """Tell whether a database's driver raised it, so that its words say more than a traceback."""
    return is_driver_error(error)


def one_line(error: BaseException) -> str:
    """Return what `error` says on one line, without the statement that SQLAlchemy adds."""
    cause = getattr(error, "orig", None)
    text = str(error if cause is None else cause).strip()
    return text.splitlines()[0] if text else type(error).__name__
