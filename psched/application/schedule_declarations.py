"""The schedules that an App declares next to its functions: `@app.schedule(...)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psched.application.task_function import TaskFunction
from psched.error_messages import did_you_mean, shown
from psched.errors import ArgumentsError, ConfigError
from psched.model import NewSchedule
from psched.schedules.validation import Terms
from psched.schedules_file.declared import FORMS, DeclaredSchedules

_OWN = {"cron", "every", "at", "key", "type", "data", "delay", "timezone"}
"""The options of `@app.schedule` that `Terms` does not have."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """One use of `@app.schedule`. `options`: fields of `NewSchedule`. The default `key` is the type of the task."""

    function: Callable[..., Any]
    key: str | None
    type: str | None
    owner: str | None
    cron: str
    data: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The place of the declaration in the code, for messages."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def schedule(self, task: TaskFunction[..., Any] | None) -> NewSchedule:
        """Return the schedule. Raises ConfigError.

        `task`: the task that the app made of the decorated function, or None.
        """
        if task is None:
            raise ConfigError(f"{self.place}: @app.schedule is for tasks of the app; add @app.task()")
        type_ = task.type if self.type is None else self.type
        if not isinstance(type_, str):
            raise ConfigError(f"{self.place}: the function handles several types; choose one, as in type='report'")
        try:
            data = task.parameters.stored((), self.data)
        except (TypeError, ValueError, ArgumentsError) as error:
            raise ConfigError(f"{self.place}: @app.schedule: data: {error}") from error
        key = type_ if self.key is None else self.key
        return NewSchedule(key, type_, self.cron, data=data, owner=self.owner, **self.options)


def check_names(options: Iterable[str]) -> None:
    """Raise ConfigError for an option that no schedule has."""
    known = Terms.__annotations__.keys() | _OWN
    for name in options:
        if name not in known:
            raise ConfigError(f"@app.schedule: unknown option {name!r}{did_you_mean(name, known)}")


def cron_of(cron: str | None, every: str | float | None, at: str | None) -> str:
    """Return the given one of the three arguments in the syntax of `cron`. Raises ConfigError for none or several."""
    given = {name: value for name, value in (("cron", cron), ("every", every), ("at", at)) if value is not None}
    if len(given) != 1:
        found = " and ".join(given) if given else "none"
        raise ConfigError(f"@app.schedule takes one of cron, every and at, got {found}; as in cron='0 3 * * *'")
    [(name, value)] = given.items()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"@app.schedule: {name} must be text, got {shown(value)}")
    return FORMS[name].format(value)


def declared_by_owner(
    declarations: Sequence[Declaration], tasks: Callable[[Callable[..., Any]], TaskFunction[..., Any] | None]
) -> Iterator[DeclaredSchedules]:
    """Yield the schedules of each owner. `tasks`: returns the task for a function. Raises ConfigError."""
    by_owner: dict[str, dict[str, NewSchedule]] = {}
    places: dict[str, str] = {}
    for each in declarations:
        new = each.schedule(tasks(each.function))
        if new.owner is None:
            raise ConfigError(f"{each.place}: the schedule has no owner; name it, as in App(owner='billing')")
        if new.key in places:
            raise ConfigError(
                f"{each.place}: the schedule of {places[new.key]} has the key {new.key!r}, too; choose another key="
            )
        places[new.key] = each.place
        by_owner.setdefault(new.owner, {})[new.key] = new

    def place(key: str) -> str:
        return f"{places[key]}: {key}"

    for owner, schedules in by_owner.items():
        yield DeclaredSchedules("the application", owner, tuple(schedules.values()), place)
