"""Loads `Settings` from a YAML file or a dict. Reports all errors, one on each line.

The check ends at a reference such as `${NAME}` that cannot be replaced, and at an `env_file` that cannot be read. Then
later errors are not reported.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from attrs import asdict, evolve, fields_dict
from cattrs import ClassValidationError

from psched.config import validators as checks
from psched.config.database_urls import EXPECTED_URL, masked_url, url_faults
from psched.config.settings import Section, SectionName, Settings
from psched.config.structuring import faults, structure
from psched.config.variable_expansion import Expansion, ExpansionError, read_env_file
from psched.config.yaml_file import read_environment
from psched.error_messages import did_you_mean, shown
from psched.errors import ConfigError
from psched.retry_wait import MAX_SECONDS

Made = TypeVar("Made", Section, Settings)

_TABLES: Mapping[SectionName, tuple[str, str]] = {
    "schedules": ("perfect_sched", "psched_schedules"),
    "queue": ("perfect_queue", "psched_queue"),
}
"""For each section: the default table for `rdb_compat`, and the default table for all other types."""
_SECTION_KEYS = frozenset(fields_dict(Section))
_PROCESS_KEYS = frozenset(fields_dict(Settings)) - {"environment", "path", "schedules", "queue"}
_MISSING = {"type": "expected rdb, redis or rdb_compat", "url": EXPECTED_URL}
_KEYS = _SECTION_KEYS | _PROCESS_KEYS | _TABLES.keys()
_SECRET_KEYS = frozenset(["on_late", "on_failure", "on_recovered", "hooks", "healthchecks", "events"])
"""Keys whose values contain URLs, secrets or commands. Error messages do not show these values."""
_KEYS_WITH_OPTIONS = frozenset(["app", "telemetry"])
"""Keys whose values have options, which may be secrets. Error messages do not show the options."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,19}://")
_INSTEAD = {
    "child_heartbeat_kill_delay": "a child that sends no heartbeat for child_heartbeat_limit seconds is killed; "
    "add the delay to this limit",
    "cleanup_interval": "finished tasks are deleted when their retention_time is over; leave the key out",
    "connect_timeout": "write it at the end of the URL, as in ?connect_timeout=5",
    "debug": "`pschedd status` shows the workers; leave the key out",
    "detach_wait": "INT stops gracefully, for child_graceful_kill_limit seconds at most; write that key",
    "max_acquire": "write task_prefetch with a number that is one less: it does not count the running task",
    "prefetch_break_types": "task_prefetch: auto, the default, takes slow types one at a time; leave the key out",
    "sslca": "write tls: {ca: FILE}",
}
"""The replacement for each key of PerfectQueue that psched does not have."""


def default_table(section: SectionName, type_: str) -> str:
    compat, ours = _TABLES[section]
    return compat if type_ == "rdb_compat" else ours


def default_environment() -> str:
    return os.environ.get("PSCHED_ENV") or os.environ.get("RAILS_ENV") or "development"


def default_file() -> Path:
    """Return the default configuration file: $PSCHED_CONFIG, or etc/psched.yml."""
    return Path(os.environ.get("PSCHED_CONFIG") or "etc/psched.yml")


def load(path: str | os.PathLike[str], environment: str | None = None, reader: SectionName = "schedules") -> Settings:
    """Return the settings of `environment` (default: $PSCHED_ENV, $RAILS_ENV, or `development`). Raises ConfigError."""
    environment = default_environment() if environment is None else environment
    file = Path(path).expanduser().absolute()
    return _Loader(read_environment(file, environment), environment, reader, file.parent, file).settings()


def from_mapping(
    mapping: Mapping[str, Any],
    base: Path | None = None,
    environment: str | None = None,
    reader: SectionName = "schedules",
) -> Settings:
    """Return the settings that a mapping describes. Raises ConfigError.

    `base`: the folder of relative paths (default: the working directory). `reader`: the section that a mapping without
    sections describes.
    """
    environment = default_environment() if environment is None else environment
    return _Loader(mapping, environment, reader, Path.cwd() if base is None else base.absolute()).settings()


def coerce(
    config: Settings | Mapping[str, Any] | str | os.PathLike[str],
    environment: str | None = None,
    reader: SectionName = "schedules",
) -> Settings:
    if isinstance(config, Settings):
        return _checked(config)
    if isinstance(config, Mapping):
        return from_mapping(config, environment=environment, reader=reader)
    if isinstance(config, str | os.PathLike):
        return load(config, environment, reader)
    raise ConfigError(f"config: expected a dict, Settings or the path of a YAML file, got {type(config).__name__}")


def _checked(settings: Settings) -> Settings:
    """Validate each value of settings that the caller has created. Return the settings. Raises ConfigError."""
    sections: dict[str, Any] = {name: _validated(section, name) for name, section in settings.named_sections}
    own = _validated(evolve(settings, schedules=None, queue=None, path=None), "")
    return evolve(own, path=settings.path, **sections)


def _validated(made: Made, section: str) -> Made:
    values = {name: value for name, value in asdict(made, recurse=False).items() if value is not None}
    try:
        return structure(type(made), values, Path.cwd())
    except ClassValidationError as error:
        lines = [f"config: {section}{section and '.'}{name}: {fault}" for name, fault in faults(error)]
        raise ConfigError(*lines) from None


@dataclass
class _Loader:
    raw: Mapping[str, Any]
    environment: str
    reader: SectionName
    base: Path
    file: Path | None = None
    found: dict[str, None] = field(default_factory=dict)
    """The errors found so far, in order, each once."""

    def settings(self) -> Settings:
        raw = {str(key): value for key, value in self.raw.items()}
        self._check_keys(raw)
        content = self._expanded(raw)
        names = [name for name in _TABLES if name in content] or [self.reader]
        sections = {name: self._section(name, content) for name in names}
        settings = self._process(content, {name: section for name, section in sections.items() if section is not None})
        if settings is not None:
            for fault in _cross_faults(settings, content):
                self._fault(fault)
        if self.found or settings is None:
            raise ConfigError(*self.found)
        return settings

    def _expanded(self, content: dict[str, Any]) -> dict[str, Any]:
        expansion = Expansion(os.environ, self.base)
        try:
            if content.get("env_file") is not None:
                content["env_file"], variables = self._env_file(expansion.of(content["env_file"], ("env_file",)))
                expansion = Expansion({**os.environ, **variables}, self.base)
            expanded: dict[str, Any] = expansion.of(content)
        except ExpansionError as error:
            raise self._error(f"{'.'.join(error.path)}: {error}") from None
        except RecursionError:
            raise self._error("nested too deeply") from None
        return expanded

    def _env_file(self, value: Any) -> tuple[Path, dict[str, str]]:
        try:
            file = checks.path(value, self.base)
            return file, read_env_file(file)
        except ValueError as error:
            raise self._error(f"env_file: {error}{self._got(str(error), ('env_file',))}") from None

    def _check_keys(self, content: Mapping[str, Any]) -> None:
        for key in content.keys() - _KEYS:
            self._fault(f"{key}: {_unknown(key, _KEYS)}")
        for name in content.keys() & _TABLES.keys():
            section = content[name]
            if section is not None and not isinstance(section, dict):
                self._fault(f"{name}: expected a mapping of settings, got {type(section).__name__}")
                continue
            for key in dict(section or {}).keys() - _SECTION_KEYS:
                is_process_key = key in _PROCESS_KEYS
                fault = "unknown key; move it to the top level" if is_process_key else _unknown(key, _SECTION_KEYS)
                self._fault(f"{name}.{key}: {fault}")

    def _section(self, name: SectionName, content: Mapping[str, Any]) -> Section | None:
        """Return the settings of a section: keys of the top level, overridden by the section's own keys."""
        own = content.get(name)
        own = own if isinstance(own, dict) else {}
        values = {key: value for key, value in {**content, **own}.items() if key in _SECTION_KEYS and value is not None}
        values.setdefault("table", default_table(name, str(values.get("type"))))
        return self._structured(Section, values, {key: (name, key) for key in own})

    def _process(self, content: Mapping[str, Any], sections: dict[str, Any]) -> Settings | None:
        values = {key: value for key, value in content.items() if key in _PROCESS_KEYS and value is not None}
        shortest = min((section.alive_time for section in sections.values()), default=300.0)
        limit = values.setdefault("child_heartbeat_limit", min(10.0, shortest / 3))
        if isinstance(limit, int | float) and 0 < limit <= MAX_SECONDS:
            values.setdefault("child_heartbeat_interval", min(2.0, limit / 4))
        values["environment"] = self.environment
        settings = self._structured(Settings, values, {})
        return None if settings is None else evolve(settings, path=self.file, **sections)

    def _structured(
        self, kind: type[Made], values: dict[str, Any], places: Mapping[str, tuple[str, ...]]
    ) -> Made | None:
        """Return `values` as a `kind`, or None after recording each error.

        `places`: for each key inside a section, its path in the file. Other keys are at the top level.
        """
        try:
            return structure(kind, values, self.base)
        except ClassValidationError as error:
            for name, fault in faults(error):
                path = places.get(name, (name,))
                if name in values:
                    text = _unexpanded(str(fault), values[name], self._raw_value(path)) + self._got(str(fault), path)
                else:
                    text = f"missing; {_MISSING[name]}"
                self._fault(f"{'.'.join(path)}: {text}")
        return None

    def _got(self, message: str, path: tuple[str, ...]) -> str:
        """Return `, got …` with the text in the file, or with a description of it if it may be a secret.

        The text in the file has `${NAME}` instead of the value of a variable. Secrets in a URL are masked.
        """
        if not message.startswith("expected") or path[-1] == "url":
            return ""
        value = self._raw_value(path)
        if value is None:  # a default, computed from a value with its own error
            return ""
        if path[-1] in _SECRET_KEYS:
            return f", got {_kind_of(value)[:100]}"
        text = _without_options(value) if path[-1] in _KEYS_WITH_OPTIONS else shown(value, sys.maxsize)
        return f", got {masked_url(text)[:100]}"

    def _raw_value(self, path: tuple[str, ...]) -> Any:
        """Return the value in the file, before the expansion; None if the file does not have the key."""
        value: Any = self.raw
        for key in path:
            if key not in value:
                return None
            value = value[key]
        return value

    def _fault(self, message: str) -> None:
        self.found[f"{self._where()}: {message}"] = None

    def _error(self, message: str) -> ConfigError:
        """Return an error with this message, after the messages of the errors found before. The caller raises it."""
        self._fault(message)
        return ConfigError(*self.found)

    def _where(self) -> str:
        return f"{self.file}:{self.environment}" if self.file else "config"


def _kind_of(value: Any) -> str:
    """Describe a value without its secrets: by its kind, the scheme of a URL, or the keys of a mapping."""
    if isinstance(value, str):
        scheme = _SCHEME.match(value)
        return f"'{scheme[0]}…'" if scheme else "text"
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(str, value))}" if value else "an empty mapping"
    return "a list" if isinstance(value, list | tuple) else shown(value)


def _without_options(value: Any) -> str:
    """Return the repr of names with options, with `…` instead of the options."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: …" for name in value) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_without_options, value))}]"
    return shown(value, sys.maxsize)


def _unexpanded(message: str, expanded: Any, raw: Any) -> str:
    """Return the message of a check, with the file's own text instead of each quoted value.

    The file's text may contain `${NAME}`, and the quoted value the content of this variable.
    """
    if isinstance(expanded, str) and isinstance(raw, str):
        return message if expanded == raw else message.replace(repr(expanded), repr(raw))
    if isinstance(expanded, Mapping) and isinstance(raw, Mapping):
        pairs = [(each, raw.get(key)) for key, each in expanded.items()]
    elif isinstance(expanded, list) and isinstance(raw, list | tuple):
        pairs = list(zip(expanded, raw, strict=False))
    else:
        return message
    for each, before in pairs:
        message = _unexpanded(message, each, before)
    return message


def _unknown(key: object, known: Iterable[str]) -> str:
    if key in _INSTEAD:
        return f"a key of PerfectQueue; {_INSTEAD[str(key)]}"
    return f"unknown key{did_you_mean(str(key), known)}"


def _url_faults(settings: Settings) -> Iterator[str]:
    """Yield each fault of a URL once, with the names of its sections, because sections often have the same URL."""
    sections: dict[str, list[str]] = {}
    for name, section in settings.named_sections:
        for fault in url_faults(section.type, section.url, section.pooler):
            sections.setdefault(fault, []).append(name)
    yield from (f"{', '.join(names)}: {fault}" for fault, names in sections.items())


def _cross_faults(settings: Settings, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield contradictions between settings that are valid by themselves. `given`: the keys in the file."""
    limit, interval = settings.child_heartbeat_limit, settings.child_heartbeat_interval
    if interval >= limit:
        yield f"child_heartbeat_interval {interval:g} must be less than child_heartbeat_limit {limit:g}"
    yield from _url_faults(settings)
    for name, section in settings.named_sections:
        yield from _lease_faults(settings, section, name, given)
        if section.type == "rdb_compat" and section.on_failure:
            yield f"on_failure: type rdb_compat ({name}) retries without end, so no task ever fails; use type: rdb"
        if section.type == "rdb_compat" and section.hooks:
            yield f"hooks: type rdb_compat ({name}) keeps no on_failure of a schedule; use type: rdb"
        if section.type == "rdb_compat" and section.events is not None:
            yield f"events: type rdb_compat ({name}) does not record what was sent; use type: rdb"
        elif section.events is not None and section.events.channel is not None and not _is_postgresql(section):
            yield f"events: channel needs PostgreSQL, which {name} does not use; write url or stream instead"
        if section.type == "rdb_compat" and section.on_recovered:
            yield f"on_recovered: type rdb_compat ({name}) has no alerts; use type: rdb"
        if section.type != "rdb_compat":
            for key in ("disable_resource_limit", "use_connection_pooling"):
                if getattr(section, key):
                    yield f"{name}: {key}: the key is for rdb_compat, whose table PerfectQueue may share"
    schedules, queue = settings.schedules, settings.queue
    if schedules is None:
        return
    if schedules.ledger is not None and schedules.type in ("rdb", "redis"):
        yield f"ledger: type {schedules.type} always has a ledger; the key is for rdb_compat"
    if schedules.max_attempts is not None and schedules.type == "rdb_compat":
        yield (
            "max_attempts: rdb_compat counts no attempts of schedules and retries without end; "
            "write it under queue:, or use type: rdb"
        )
    if queue is not None and (schedules.url, schedules.table) == (queue.url, queue.table):
        yield f"queue.table: schedules and queue cannot share the table {queue.table!r}; name another one"


def _is_postgresql(section: Section) -> bool:
    return section.type == "rdb" and section.url.startswith("postgres")


def _lease_faults(settings: Settings, section: Section, name: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error if a lease ends before a frozen child is killed, or if leases are renewed too rarely.

    The child's limits are checked against the lease only if one of them is in `given`, the keys in the file.
    """
    limit, grace = settings.child_heartbeat_limit, settings.child_kill_interval
    explicit = given.keys() & {"child_heartbeat_limit", "child_kill_interval"}
    if explicit and limit + grace >= section.alive_time:
        yield (
            f"child_heartbeat_limit {limit:g} + child_kill_interval {grace:g} must be less than {name}'s "
            f"alive_time {section.alive_time:g}, "
            "or another worker takes the task of a frozen child before the child is killed"
        )
    if section.task_heartbeat_interval >= section.alive_time / 2:
        yield (
            f"task_heartbeat_interval {section.task_heartbeat_interval:g} must be less than half of {name}'s "
            f"alive_time {section.alive_time:g}"
        )
