"""What a registration and its tasks carry: the handler's data, and how a run that failed is repeated. In the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psched.backoff import check_wait
from psched.model import NewTask
from psched.payload import check_key, encode
from psched.suggest import shown

RETRY_TIMEOUT = 60.0
"""Seconds until a run that failed is repeated, where nothing is said."""

INSTANCE = "psched.instance"
"""The type of the rows by which instances know of one another; no task may be named like that."""

_LONGEST_NAME = 200
"""So that the keys of its tasks have room for more."""

_OPTIONS = {
    "push": {"data": "data", "delay": "delay", "retry": "retry", "retryTimeout": "retry_timeout"},
    "register": {"cronExpr": "cron", "retry": "retry", "retryTimeout": "retry_timeout"},
}
"""What schedule-mq takes in the mapping after the name, by verb: its option names, and psched's keywords for them."""
_MILLISECONDS = {"delay", "retryTimeout"}


@dataclass(frozen=True, slots=True)
class JobData:
    """The data of one task. `retry_timeout` (seconds) matters with `retry` only."""

    data: Any = None
    retry: bool = False
    retry_timeout: float = RETRY_TIMEOUT

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> JobData:
        """Return the order that stands in a row. Raises ValueError for what nobody can run."""
        return cls(stored.get("data"), stored.get("retry", False), stored.get("retry_timeout", RETRY_TIMEOUT)).checked()

    def checked(self) -> JobData:
        """Return it. Raises ValueError for what makes no sense; whether the data can be stored is asked elsewhere."""
        if not isinstance(self.retry, bool):
            raise ValueError(f"retry must be True or False, got {shown(self.retry)}")
        check_seconds("retry_timeout", self.retry_timeout, above=True)
        return self

    def stored(self) -> dict[str, Any]:
        """Return the JSON object that is kept in rows."""
        again = {"retry": True, "retry_timeout": self.retry_timeout} if self.retry else {}
        return {"data": self.data, **again}

    def check_data(self) -> None:
        """Raise ValueError when the data cannot be stored."""
        encode(self.stored())

    def task(self, key: str, name: str, run_at: float | None) -> NewTask:
        """Return the task that carries it. Without `retry` it is begun once: whoever dies with it has lost it."""
        return NewTask(key, name, self.stored(), run_at, max_attempts=None if self.retry else 1)


def order(data: object, retry: bool, retry_timeout: float | None) -> JobData:
    """Return the order that says so; `retry_timeout` None takes the usual one. Raises ValueError, as `checked` does."""
    return JobData(data, retry, RETRY_TIMEOUT if retry_timeout is None else retry_timeout).checked()


def refuse_options(verb: str, name: str, given: object) -> None:
    """Raise ValueError, with the call to write instead, when `given` is a mapping of schedule-mq's options."""
    keywords = _OPTIONS[verb]
    if not isinstance(given, Mapping) or not given or not given.keys() <= keywords.keys():
        return
    call = ", ".join([repr(name), *(f"{keywords[option]}={_shown(option, value)}" for option, value in given.items())])
    as_data = f"; or {verb}({name!r}, data={{…}}) if this mapping is the task's data" if verb == "push" else ""
    raise ValueError(
        f"{name!r}: {', '.join(given)} in a mapping are options as schedule-mq takes them; "
        f"write {verb}({call}), in seconds{as_data}"
    )


def _shown(option: str, value: object) -> str:
    """Return a value as psched takes it; data, which may be long or secret, is left out."""
    if option in _MILLISECONDS and isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value / 1000:g}"
    return "…" if option == "data" else repr(value)


def checked_name(name: object) -> str:
    """Return the name of a task. Raises ValueError unless it is text of 1 to 200 characters that is not reserved."""
    if callable(name):
        raise ValueError(f"{name!r} is no name of a task; write bind('name') or @bind('name')")
    text = check_key(name)
    if len(text) > _LONGEST_NAME or text == INSTANCE:
        raise ValueError(f"a task's name has at most {_LONGEST_NAME} characters and is not {INSTANCE!r}, got {text!r}")
    return text


def check_seconds(name: str, value: object, above: bool = False) -> None:
    """Raise ValueError unless `value` is a number of seconds from 0 on (`above`: greater than 0)."""
    check_wait(name, value)
    if above and value == 0:
        raise ValueError(f"{name} must be more than 0 seconds, got {shown(value)}")
