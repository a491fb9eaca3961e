"""What the configuration says, frozen: `Settings` of the process and a `Section` for each table. Used in every process.

Both are checked when they are made. All durations are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from psched.backoff import Backoff
from psched.config import checks
from psched.config.urls import absolute_path, masked_url
from psched.cron import DIALECTS

Names = Annotated[tuple[str, ...], PlainValidator(checks.names)]
Folders = Annotated[tuple[str, ...], PlainValidator(checks.folders)]
Required = Annotated[tuple[str, ...], PlainValidator(checks.required)]
Text = Annotated[str, PlainValidator(checks.text)]
Positive = Annotated[float, PlainValidator(checks.seconds(0, above=True))]
NotNegative = Annotated[float, PlainValidator(checks.seconds(0))]
CountOrNone = Annotated[int | None, PlainValidator(checks.count(1, "none"))]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _cron_dialect(known: dict[str, Any]) -> str:
    """Ruby workers may share a table of the originals, and must compute the same."""
    return "perfectsched" if known.get("type") == "rdb_compat" else "vixie"


def _task_heartbeat_interval(known: dict[str, Any]) -> float:
    return float(min(2.0, known.get("alive_time", 300.0) / 6))


class _Loading(_Frozen):
    """What is loaded to run tasks."""

    app: Names = ()
    include: Folders = ()
    require: Required = ()


Loading = TypeVar("Loading", bound=_Loading)


class Section(_Loading):
    """One table and how its rows are run: the keys that may stand at the top level or in `schedules:` and `queue:`."""

    type: Annotated[str, PlainValidator(checks.store)]
    url: Annotated[str, PlainValidator(checks.url)] = Field(repr=False)
    table: Annotated[str, PlainValidator(checks.table)]
    tls: Annotated[dict[str, str], PlainValidator(checks.tls)] = {}
    timezone: Annotated[str, PlainValidator(checks.timezone)] = "UTC"
    cron_dialect: Annotated[str, PlainValidator(checks.one_of(*DIALECTS))] = Field(default_factory=_cron_dialect)
    poll_interval: Positive = 1.0
    alive_time: Positive = 300.0
    retry_wait: Annotated[float | Backoff, PlainValidator(checks.wait)] = 300.0
    retention_time: NotNegative = 300.0
    ledger: Annotated[str | None, PlainValidator(checks.table_or_none)] = None
    ledger_retention: NotNegative = 400 * 86400.0
    ledger_count: Annotated[int, PlainValidator(checks.count(1))] = 100_000
    on_late: Annotated[tuple[str, ...], PlainValidator(checks.hook)] = ()
    alert_interval: Positive = 10.0
    task_heartbeat_interval: Positive = Field(default_factory=_task_heartbeat_interval)
    task_prefetch: Annotated[int | Literal["auto"], PlainValidator(checks.count(1, "auto", "auto"))] = "auto"
    task_timeout: Annotated[float | None, PlainValidator(checks.seconds(0, above=True, never=True))] = None
    max_attempts: CountOrNone = None

    @property
    def masked_url(self) -> str:
        """The URL without its password, for messages."""
        return masked_url(self.url)


class Settings(_Loading):
    """What one process of psched is to do. `path` is the file it came from, if any."""

    environment: str
    path: Path | None = None
    schedules: Section | None = None
    queue: Section | None = None
    log: Annotated[Path | None, PlainValidator(checks.log_path)] = None
    pid_file: Annotated[Path, PlainValidator(checks.path)] | None = None
    user: Text | None = None
    group: Text | None = None
    processors: Annotated[int, PlainValidator(checks.count(1))] = 1
    processor_type: Annotated[Literal["process", "thread"], PlainValidator(checks.one_of("process", "thread"))] = (
        "process"
    )
    child_kill_interval: Positive = 2.0
    child_graceful_kill_limit: Annotated[float | None, PlainValidator(checks.seconds(0, never=True))] = None
    child_heartbeat_interval: Positive = 2.0
    child_heartbeat_limit: Positive = 10.0
    child_fork_frequency_limit: NotNegative = 5.0
    max_request_per_child: CountOrNone = None

    @property
    def sections(self) -> tuple[Section, ...]:
        """The sections that are there."""
        return tuple(section for _, section in self.named_sections)

    @property
    def named_sections(self) -> tuple[tuple[str, Section], ...]:
        """The sections that are there, with their names."""
        named = {"schedules": self.schedules, "queue": self.queue}
        return tuple((name, section) for name, section in named.items() if section is not None)

    def with_application(self, names: Iterable[str], include: Iterable[str], require: Iterable[str]) -> Settings:
        """Return settings with the command line laid over: other `names`, if any; further folders and modules.

        Relative folders and files are taken from the working directory.
        """
        folders = tuple(str(absolute_path(folder, Path.cwd())) for folder in include)
        modules = tuple(str(absolute_path(name, Path.cwd())) if checks.is_file(name) else name for name in require)
        apps = tuple(names)

        def over(configured: Loading) -> Loading:
            """Folders are searched first to last, modules last to first: the command line's come before the others."""
            app = apps or configured.app
            update = {"app": app, "include": folders + configured.include, "require": configured.require + modules}
            return configured.model_copy(update=update)

        sections = {"schedules": self.schedules, "queue": self.queue}
        changed = {name: None if section is None else over(section) for name, section in sections.items()}
        return over(self).model_copy(update=changed)
