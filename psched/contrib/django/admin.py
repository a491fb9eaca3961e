"""Admin pages of schedules and tasks. They show psched's rows and perform actions on them, but edit nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone

from psched.config import SectionName
from psched.contrib.django import clients
from psched.contrib.django.models import Schedule, Task
from psched.errors import ConfigError, NotFoundError, ScheduleError
from psched.model import TASK_STATUSES, ScheduleRow, TaskRow
from psched.schedules.derived_state import StateWord
from psched.stored_error_summary import error_summary

_PAGE = 100

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin  # at runtime ModelAdmin takes no type argument

Action = Callable[[Any], object]
"""An action. It is called with a reference to a schedule or task."""


class RowAdmin(_ModelAdmin):
    """A list of rows, and a page for each row. The list can be filtered by type, prefix of the key, and state."""

    section: ClassVar[SectionName]
    columns: ClassVar[tuple[str, ...]]
    states: ClassVar[tuple[str, ...]]
    row_actions: ClassVar[Mapping[str, Action]]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False, because programs add the rows."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False. To end a task, use an action."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show a page of rows, or perform an action on the selected rows."""
        self._check_permission(request)
        if request.method == "POST":
            self._act(request, request.POST.getlist("key"))
            return HttpResponseRedirect(request.get_full_path())
        wanted = {name: request.GET[name] for name in ("type", "prefix", "state", "after") if request.GET.get(name)}
        rows: list[Any] = []
        try:
            with clients.django_errors(self.section):
                rows = list(islice(self.read(**wanted), _PAGE + 1))
        except (ConfigError, ValueError) as error:
            self.message_user(request, str(error), messages.ERROR)
        following = QueryDict(mutable=True)
        if len(rows) > _PAGE:
            following.update({**wanted, "after": self.place(rows[_PAGE - 1])})
        context = {
            "title": self.opts.verbose_name_plural,
            "columns": self.columns,
            "rows": [(row.key, self._url(row.key), self.cells(row)) for row in rows[:_PAGE]],
            "states": self.states,
            "wanted": wanted,
            "following": following.urlencode(),
        }
        return self._page(request, "list", context)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show one row, or perform an action on it."""
        key = unquote(str(object_id))
        self._check_permission(request)
        if request.method == "POST":
            self._act(request, [key])
            return HttpResponseRedirect(self._url(key))
        try:
            with clients.django_errors(self.section):
                row = clients.of(self.section)[key].metadata()
        except (NotFoundError, ValueError) as error:
            raise Http404(str(error)) from None
        return self._page(request, "detail", {"title": key, "fields": list(self.fields_of(row)), "key": key})

    def read(self, **wanted: Any) -> Iterator[Any]:
        """Yield rows in the order of the list. Raises ValueError if a filter in `wanted` has no valid value."""
        raise NotImplementedError

    def place(self, row: Any) -> str:
        """Return the value of `after` for a page of the list that begins after `row`."""
        raise NotImplementedError

    def cells(self, row: Any) -> Iterable[object]:
        """Return the values of all columns but the key."""
        raise NotImplementedError

    def fields_of(self, row: Any) -> Iterator[tuple[str, object]]:
        """Yield the name and the value of each field on the page of one row."""
        raise NotImplementedError

    def _check_permission(self, request: HttpRequest) -> None:
        allowed = self.has_view_permission(request) or self.has_change_permission(request)
        if not (allowed if request.method != "POST" else self.has_change_permission(request)):
            raise PermissionDenied

    def _act(self, request: HttpRequest, keys: Iterable[str]) -> None:
        """Perform the action that the request names, and show a message about the result for each row."""
        name = request.POST.get("action", "")
        action = self.row_actions.get(name)
        if action is None:
            self.message_user(request, "Choose an action.", messages.WARNING)
            return
        done = []
        for key in keys:
            try:
                with clients.django_errors(self.section):
                    action(clients.of(self.section)[key])
            except (ScheduleError, ConfigError, ValueError) as error:
                self.message_user(request, f"{key}: {error}", messages.ERROR)
            else:
                self.log_change(request, self.model(key=key), name)
                done.append(key)
        if done:
            self.message_user(request, f"{name}: {', '.join(done)}", messages.SUCCESS)

    def _url(self, key: str) -> str:
        return reverse(f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_change", args=[quote(key)])

    def _page(self, request: HttpRequest, name: str, context: Mapping[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name  # Django's own pages also set this
        actions = self.row_actions if self.has_change_permission(request) else ()
        shared = {**self.admin_site.each_context(request), "opts": self.opts, "actions": actions}
        return TemplateResponse(request, f"admin/psched/{name}.html", {**shared, **context})


@admin.register(Schedule)
class ScheduleAdmin(RowAdmin):
    """Admin pages of schedules, with the actions run now, pause and resume."""

    section = "schedules"
    columns = ("key", "type", "cron", "time zone", "next run", "state", "last error")
    states = get_args(StateWord)
    row_actions: ClassVar = {
        "run now": lambda schedule: schedule.run_now(),
        "pause": lambda schedule: schedule.pause(),
        "resume": lambda schedule: schedule.resume(),
    }

    def read(self, after: str | None = None, **wanted: Any) -> Iterator[ScheduleRow]:
        """Yield schedules in the order of their due times."""
        time, _, key = (after or "").partition(":")
        yield from clients.schedules().list(**wanted, after=(float(time), key) if after else None)

    def place(self, row: ScheduleRow) -> str:
        return f"{row.next_run_time!r}:{row.key}"

    def cells(self, row: ScheduleRow) -> Iterable[object]:
        due = None if row.paused or row.ended else _moment(row.next_run_time)
        error = None if row.last_error is None else error_summary(row.last_error)
        return row.type, row.rule.cron, row.rule.timezone, due, _state(row), error

    def fields_of(self, row: ScheduleRow) -> Iterator[tuple[str, object]]:
        yield from {
            "type": row.type,
            "state": _state(row),
            "cron": row.rule.cron,
            "time zone": row.rule.timezone,
        }.items()
        yield "delay", row.rule.delay
        for name in ("start", "end"):
            time = getattr(row.rule, name)
            yield name, None if time is None else _moment(time)
        for name in ("spread", "max_runs"):
            yield name.replace("_", " "), getattr(row.rule, name)
        yield "exclude", ", ".join(map(str, row.rule.exclude))
        yield "next occurrence", None if row.ended else _moment(row.next_time)
        yield "next run", None if row.paused or row.ended else _moment(row.next_run_time)
        yield "data", json.dumps(row.data, indent=2, ensure_ascii=False)
        for field in fields(row.policy):
            yield field.name.replace("_", " "), _shown(getattr(row.policy, field.name))
        for name in ("attempts", "node", "problem", "last_error"):
            yield name.replace("_", " "), getattr(row, name)


@admin.register(Task)
class TaskAdmin(RowAdmin):
    """Admin pages of tasks, with the actions to retry failed tasks and to cancel waiting or running tasks."""

    section = "queue"
    columns = ("key", "type", "user", "status", "due", "created", "finished", "attempts", "last error")
    states = TASK_STATUSES
    row_actions: ClassVar = {"retry": lambda task: task.retry(), "cancel": lambda task: task.cancel_request()}

    def read(self, state: Any = None, **wanted: Any) -> Iterator[TaskRow]:
        """Yield tasks in the order of their keys."""
        yield from clients.queue().list(state, **wanted)

    def place(self, row: TaskRow) -> str:
        return row.key

    def cells(self, row: TaskRow) -> Iterable[object]:
        due = None if row.due is None or row.status != "waiting" else _moment(row.due)
        times = (None if time is None else _moment(time) for time in (row.created_at, row.finished_at))
        error = None if row.last_error is None else error_summary(row.last_error)
        return row.type, row.user, _status(row), due, *times, row.attempts, error

    def fields_of(self, row: TaskRow) -> Iterator[tuple[str, object]]:
        yield from {"type": row.type, "status": _status(row), "user": row.user, "priority": row.priority}.items()
        yield "data", json.dumps(row.data, indent=2, ensure_ascii=False)
        yield "headers", json.dumps(dict(row.headers), indent=2, ensure_ascii=False)
        for name in ("created_at", "run_at", "due", "finished_at"):
            time = getattr(row, name)
            yield name.replace("_", " "), None if time is None else _moment(time)
        for name in ("attempts", "max_attempts", "max_running", "compression", "node", "problem", "last_error"):
            yield name.replace("_", " "), getattr(row, name)


def _moment(seconds: float) -> datetime:
    """Return a time for a template. The template shows it in Django's current time zone."""
    return timezone.localtime(datetime.fromtimestamp(seconds, UTC))


def _shown(value: object) -> object:
    """Return a value of a policy for a template: a tuple of names becomes one text."""
    return ", ".join(value) if isinstance(value, tuple) else value


def _state(row: ScheduleRow) -> str:
    schedules = clients.schedules()
    return schedules.state(row, schedules.store.now()).word


def _status(row: TaskRow) -> str:
    is_asked = row.cancel_requested and row.status == "running"
    return "running, cancel requested" if is_asked else row.status
