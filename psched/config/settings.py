"""The keys of the configuration and their defaults: frozen `Settings` of a process, with a `Section` for each table.

The annotation of each field names its validator. All durations are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from attrs import Factory, evolve, field, frozen

from psched.config import validators as checks
from psched.config.alert_hooks import NO_HOOK, Hook, hook, hooks
from psched.config.database_urls import masked_url
from psched.config.events import EventKind, EventReceiver, event_receiver
from psched.config.healthchecks import Healthchecks, healthchecks
from psched.config.structuring import Check
from psched.config.web import Web, web
from psched.cron import DIALECTS, CronDialect, reckoning
from psched.payload import MAX_DATA_SIZE
from psched.retry_wait import Backoff
from psched.store import CONNECTIONS, StoreSettings

TextOrNone = Annotated[str | None, Check(checks.text)]
Positive = Annotated[float, Check(checks.seconds(0, above=True))]
NotNegative = Annotated[float, Check(checks.seconds(0))]
SectionName = Literal["schedules", "queue"]
CountOrNone = Annotated[int | None, Check(checks.count(1, "none"))]


def _cron_dialect(section: Section) -> CronDialect:
    """Return the default dialect. rdb_compat has Ruby's dialect, because Ruby workers must compute the same times."""
    return "perfectsched" if section.type == "rdb_compat" else "vixie"


def _retry_wait(section: Section) -> float | Backoff:
    """Return the default wait between attempts. rdb_compat has a constant wait, because it does not count attempts."""
    return 300.0 if section.type == "rdb_compat" else Backoff(first=10, factor=2, limit=300)


@frozen(kw_only=True)
class Section:
    """One table and how its rows are run: the keys of `schedules:` and `queue:`.

    If a key is at the top level of the configuration, it applies to both sections.
    """

    app: Annotated[tuple[str | checks.NameWithOptions, ...], Check(checks.names)] = ()
    include: Annotated[tuple[str, ...], Check(checks.folders, located=True)] = ()
    require: Annotated[tuple[str, ...], Check(checks.required, located=True)] = ()
    type: Annotated[str, Check(checks.store)]
    url: Annotated[str, Check(checks.url, located=True)] = field(repr=False)
    table: Annotated[str, Check(checks.table)]
    tls: Annotated[dict[str, str] | None, Check(checks.tls, located=True)] = None
    pooler: Annotated[str, Check(checks.one_of("auto", "transaction", "session"))] = "auto"
    timezone: Annotated[str, Check(checks.timezone)] = "UTC"
    cron_dialect: Annotated[CronDialect, Check(checks.one_of(*DIALECTS))] = Factory(_cron_dialect, takes_self=True)
    poll_interval: Positive = 1.0
    alive_time: Positive = 300.0
    retry_wait: Annotated[float | Backoff, Check(checks.wait)] = Factory(_retry_wait, takes_self=True)
    retention_time: NotNegative = 300.0
    failed_retention_time: Annotated[float | None, Check(checks.seconds(0, never=True))] = None
    ledger: Annotated[str | None, Check(checks.table_or_none)] = None
    ledger_retention: NotNegative = 400 * 86400.0
    ledger_count: Annotated[int, Check(checks.count(1))] = 100_000
    stats_retention: NotNegative = 30 * 86400.0
    apply_at_start: Annotated[bool, Check(checks.flag)] = False
    on_late: Annotated[Hook, Check(hook)] = NO_HOOK
    on_failure: Annotated[Hook, Check(hook)] = NO_HOOK
    on_recovered: Annotated[Hook, Check(hook)] = NO_HOOK
    hooks: Annotated[Mapping[str, Hook], Check(hooks)] = field(factory=dict, repr=False)
    alert_interval: Positive = 10.0
    events: Annotated[EventReceiver | None, Check(event_receiver)] = None
    healthchecks: Annotated[Healthchecks | None, Check(healthchecks)] = field(default=None, repr=False)
    types: Annotated[tuple[str, ...], Check(checks.globs)] = ()
    task_heartbeat_interval: Positive = Factory(lambda section: min(2.0, section.alive_time / 6), takes_self=True)
    task_prefetch: Annotated[int | Literal["auto"], Check(checks.count(0, "auto", "auto"))] = "auto"
    task_timeout: Annotated[float | None, Check(checks.seconds(0, above=True, never=True))] = None
    max_attempts: CountOrNone = None
    disable_resource_limit: Annotated[bool, Check(checks.flag)] = False
    use_connection_pooling: Annotated[bool, Check(checks.flag)] = False
    max_data_size: Annotated[int, Check(checks.count(1))] = MAX_DATA_SIZE

    @property
    def masked_url(self) -> str:
        return masked_url(self.url)

    def store_settings(self, holder: str, connections: int = CONNECTIONS) -> StoreSettings:
        """Return the parameters of the store, except the name of its table."""
        return StoreSettings(
            self.url,
            holder,
            tls=self.tls or {},
            reckoning=reckoning(self.cron_dialect),
            connections=connections,
            max_data_size=self.max_data_size,
            ledger=self.ledger,
            pooler=self.pooler,
            disable_resource_limit=self.disable_resource_limit,
            use_connection_pooling=self.use_connection_pooling,
            keeps_failures=self.reports_failures,
            keeps_endings=self.sends("task"),
        )

    def sends(self, kind: EventKind) -> bool:
        return self.events is not None and kind in self.events.only

    @property
    def reports_recoveries(self) -> bool:
        return bool(self.on_recovered) or self.sends("recovered")

    @property
    def reports_failures(self) -> bool:
        """Whether failures must be stored: to report them, or to report the recovery later."""
        return bool(self.on_failure or self.hooks) or self.sends("failed") or self.reports_recoveries


@frozen(kw_only=True)
class Settings:
    """The settings of one process of psched. `path`: the configuration file, if any."""

    environment: str
    path: Path | None = None
    schedules: Section | None = None
    queue: Section | None = None
    env_file: Annotated[Path | None, Check(checks.path, located=True)] = None
    log: Annotated[Path | None, Check(checks.log_path, located=True)] = None
    log_format: Annotated[Literal["text", "json"], Check(checks.one_of("text", "json"))] = "text"
    telemetry: Annotated[tuple[checks.NameWithOptions, ...], Check(checks.listeners)] = ()
    pid_file: Annotated[Path | None, Check(checks.path, located=True)] = None
    metrics_file: Annotated[Path | Literal["none"] | None, Check(checks.metrics_path, located=True)] = None
    user: TextOrNone = None
    group: TextOrNone = None
    processors: Annotated[int, Check(checks.count(1, maximum=10_000))] = 1
    proc_title: Annotated[Literal["type", "key"], Check(checks.one_of("type", "key"))] = "type"
    processor_type: Annotated[Literal["process", "thread"], Check(checks.one_of("process", "thread"))] = "process"
    child_kill_interval: Positive = 2.0
    child_graceful_kill_limit: Annotated[float | None, Check(checks.seconds(0, never=True))] = None
    child_heartbeat_interval: Positive = 2.0
    child_heartbeat_limit: Positive = 10.0
    child_fork_frequency_limit: NotNegative = 5.0
    max_request_per_child: CountOrNone = None
    web: Annotated[Web, Check(web)] = Web()  # noqa: RUF009 – frozen

    def metrics_path(self, pid_file: Path | None) -> Path | None:
        """Return the file of counters for the daemon with this pid file; None if the daemon has no such file."""
        if self.metrics_file is not None:
            return None if self.metrics_file == "none" else self.metrics_file
        return None if pid_file is None else pid_file.with_name(f"{pid_file.name}.metrics")

    @property
    def sections(self) -> tuple[Section, ...]:
        return tuple(section for _, section in self.named_sections)

    @property
    def named_sections(self) -> tuple[tuple[SectionName, Section], ...]:
        named: dict[SectionName, Section | None] = {"schedules": self.schedules, "queue": self.queue}
        return tuple((name, section) for name, section in named.items() if section is not None)

    def with_application(
        self, names: Iterable[str], include: Iterable[str], require: Iterable[str], types: Iterable[str] = ()
    ) -> Settings:
        """Return the settings with the options of the command line applied.

        `names` and `types` replace those of the configuration, unless they are empty. `include` and `require` are added
        to those of the configuration. Relative paths start at the working directory. Each of `types` may contain
        several globs, separated by commas.
        """
        folders = checks.folders(tuple(include), Path.cwd())
        modules = checks.required(tuple(require), Path.cwd())
        apps = tuple(names)
        served = tuple(glob.strip() for each in types for glob in each.split(",") if glob.strip())
        sections: dict[str, Any] = {
            name: evolve(
                section,
                app=apps or section.app,
                include=folders + section.include,  # searched from the first
                require=section.require + modules,  # searched from the last
                types=served or section.types,
            )
            for name, section in self.named_sections
        }
        return evolve(self, **sections)
