"""Checks of the arguments that callers give to the methods of a scheduler."""

from __future__ import annotations

from collections.abc import Mapping

from psched.error_messages import shown
from psched.keys import check_key
from psched.retry_wait import check_wait
from psched.scheduler.instance_registry import INSTANCE

_MAX_NAME_LENGTH = 200
"""The maximum number of characters of a name. It leaves room for the time in the key of an occurrence's task."""
_OPTIONS = {
    "push": {"data": "data", "delay": "delay", "retry": "retry", "retryTimeout": "retry_timeout"},
    "register": {"cronExpr": "cron", "retry": "retry", "retryTimeout": "retry_timeout"},
}
"""For each method: the names of schedule-mq's options, with the keywords that psched uses for them."""
_MILLISECONDS = {"delay", "retryTimeout"}


def refuse_options(method: str, name: str, given: object) -> None:
    """Raise ValueError if `given` is a mapping of schedule-mq's options. The error shows the call to write instead."""
    keywords = _OPTIONS[method]
    if not isinstance(given, Mapping) or not given or not given.keys() <= keywords.keys():
        return
    options = (f"{keywords[option]}={_as_keyword(option, value)}" for option, value in given.items())
    call = ", ".join([repr(name), *options])
    as_data = f"; or {method}({name!r}, data={{…}}) if this mapping is the task's data" if method == "push" else ""
    raise ValueError(
        f"{name!r}: a mapping with {', '.join(given)} looks like schedule-mq's options; "
        f"write {method}({call}), with times in seconds{as_data}"
    )


def _as_keyword(option: str, value: object) -> str:
    """Return an option's value as text, in the form that psched takes. Data is omitted, as it may be long or secret."""
    if option in _MILLISECONDS and isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value / 1000:g}"
    return "…" if option == "data" else repr(value)


def checked_name(name: object) -> str:
    """Return the name of a task. Raises ValueError if it is reserved, or is not text of 1 to 200 characters."""
    if callable(name):
        raise ValueError(f"expected the name of a task, got {name!r}; write bind('name') or @bind('name')")
    text = check_key(name)
    if len(text) > _MAX_NAME_LENGTH or text == INSTANCE:
        raise ValueError(
            f"a task's name must have at most {_MAX_NAME_LENGTH} characters and not be {INSTANCE!r}, got {text!r}"
        )
    return text


def check_positive(name: str, seconds: object) -> None:
    check_wait(name, seconds)
    if seconds == 0:
        raise ValueError(f"{name} must be more than 0 seconds, got {shown(seconds)}")
