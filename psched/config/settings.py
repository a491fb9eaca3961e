"""What the configuration says, frozen: `Settings` of the process and a `Section` for each table. Used in every process.

Both are checked when they are made. All durations are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from psched.backoff import Backoff
from psched.checked import Checked, Derived, Test
from psched.config import checks
from psched.config.urls import absolute_path, masked_url
from psched.cron import DIALECTS

Names = Annotated[tuple[str, ...], Test(checks.names)]
Folders = Annotated[tuple[str, ...], Test(checks.folders, located=True)]
Required = Annotated[tuple[str, ...], Test(checks.required, located=True)]
TextOrNone = Annotated[str | None, Test(checks.text)]
Positive = Annotated[float, Test(checks.seconds(0, above=True))]
NotNegative = Annotated[float, Test(checks.seconds(0))]
CountOrNone = Annotated[int | None, Test(checks.count(1, "none"))]


def _cron_dialect(known: Mapping[str, Any]) -> str:
    """Ruby workers may share a table of the originals, and must compute the same."""
    return "perfectsched" if known.get("type") == "rdb_compat" else "vixie"


def _task_heartbeat_interval(known: Mapping[str, Any]) -> float:
    return float(min(2.0, known.get("alive_time", 300.0) / 6))


@dataclass(frozen=True, init=False, slots=True, kw_only=True)
class _Loading(Checked):
    """What is loaded to run tasks."""

    app: Names = ()
    include: Folders = ()
    require: Required = ()


Loading = TypeVar("Loading", bound=_Loading)


@dataclass(frozen=True, init=False, slots=True, kw_only=True)
class Section(_Loading):
    """One table and how its rows are run: the keys that may stand at the top level or in `schedules:` and `queue:`."""

    type: Annotated[str, Test(checks.store)]
    url: Annotated[str, Test(checks.url, located=True)] = field(repr=False)
    table: Annotated[str, Test(checks.table)]
    tls: Annotated[dict[str, str], Test(checks.tls, located=True), Derived(lambda _: {})]
    timezone: Annotated[str, Test(checks.timezone)] = "UTC"
    cron_dialect: Annotated[str, Test(checks.one_of(*DIALECTS)), Derived(_cron_dialect)]
    poll_interval: Positive = 1.0
    alive_time: Positive = 300.0
    retry_wait: Annotated[float | Backoff, Test(checks.wait)] = 300.0
    retention_time: NotNegative = 300.0
    ledger: Annotated[str | None, Test(checks.table_or_none)] = None
    ledger_retention: NotNegative = 400 * 86400.0
    ledger_count: Annotated[int, Test(checks.count(1))] = 100_000
    on_late: Annotated[tuple[str, ...], Test(checks.hook)] = ()
    alert_interval: Positive = 10.0
    task_heartbeat_interval: Annotated[Positive, Derived(_task_heartbeat_interval)]
    task_prefetch: Annotated[int | Literal["auto"], Test(checks.count(1, "auto", "auto"))] = "auto"
    task_timeout: Annotated[float | None, Test(checks.seconds(0, above=True, never=True))] = None
    max_attempts: CountOrNone = None

    @property
    def masked_url(self) -> str:
        """The URL without its password, for messages."""
        return masked_url(self.url)


@dataclass(frozen=True, init=False, slots=True, kw_only=True)
class Settings(_Loading):
    """What one process of psched is to do. `path` is the file it came from, if any."""

    environment: str
    path: Path | None = None
    schedules: Section | None = None
    queue: Section | None = None
    log: Annotated[Path | None, Test(checks.log_path, located=True)] = None
    pid_file: Annotated[Path | None, Test(checks.path, located=True)] = None
    user: TextOrNone = None
    group: TextOrNone = None
    processors: Annotated[int, Test(checks.count(1))] = 1
    processor_type: Annotated[Literal["process", "thread"], Test(checks.one_of("process", "thread"))] = "process"
    child_kill_interval: Positive = 2.0
    child_graceful_kill_limit: Annotated[float | None, Test(checks.seconds(0, never=True))] = None
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
            return configured.but(app=app, include=folders + configured.include, require=configured.require + modules)

        sections = {"schedules": self.schedules, "queue": self.queue}
        changed = {name: None if section is None else over(section) for name, section in sections.items()}
        return over(self).but(**changed)
