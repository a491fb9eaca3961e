"""Loads `Settings` from a YAML file or a dict; reports every fault, one line each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from attrs import asdict, evolve, fields_dict
from cattrs import ClassValidationError

from psched.config.settings import Section, Settings
from psched.config.structuring import faults, structure
from psched.config.urls import masked_url, pooler_fault, type_fault
from psched.config.validators import MAX_SECONDS
from psched.config.yaml_file import UnsetVariableError, expand, read_environment
from psched.errors import ConfigError
from psched.suggest import did_you_mean, shown

Reader = Literal["schedules", "queue"]
Made = TypeVar("Made", Section, Settings)

_TABLES = {"schedules": ("perfect_sched", "psched_schedules"), "queue": ("perfect_queue", "psched_queue")}
"""The default table of each section: for `rdb_compat`, for other types."""
_SECTION_KEYS = frozenset(fields_dict(Section))
_PROCESS_KEYS = frozenset(fields_dict(Settings)) - {"environment", "path", "schedules", "queue"}
_KEYS = _SECTION_KEYS | _PROCESS_KEYS | _TABLES.keys()


def default_environment() -> str:
    """Return $PSCHED_ENV, or `development`."""
    return os.environ.get("PSCHED_ENV") or "development"


def load(path: str | os.PathLike[str], environment: str | None = None, reader: Reader = "schedules") -> Settings:
    """Return the settings of `environment` (default: $PSCHED_ENV, or `development`) in the YAML file at `path`.

    Raises ConfigError: the file, the environment or a value cannot be used.
    """
    environment = default_environment() if environment is None else environment
    file = Path(path).expanduser().absolute()
    content = read_environment(file, environment)
    return _Loader(content, environment, file, file.parent, reader).settings()


def from_mapping(
    mapping: Mapping[str, Any],
    base: Path | None = None,
    environment: str | None = None,
    reader: Reader = "schedules",
) -> Settings:
    """Return the settings in `mapping`, which is one environment.

    `base`: the folder of relative paths (default: the working directory). `reader`: the section for a flat mapping,
    which has `type` and `url` but no sections. Raises ConfigError.
    """
    environment = default_environment() if environment is None else environment
    return _Loader(dict(mapping), environment, None, Path.cwd() if base is None else base.absolute(), reader).settings()


def coerce(
    config: Settings | Mapping[str, Any] | str | os.PathLike[str],
    environment: str | None = None,
    reader: Reader = "schedules",
) -> Settings:
    """Return the settings in `config`: settings, one environment as a mapping, or the path of a file."""
    if isinstance(config, Settings):
        return _checked(config)
    if isinstance(config, Mapping):
        return from_mapping(config, environment=environment, reader=reader)
    if isinstance(config, str | os.PathLike):
        return load(config, environment, reader)
    raise ConfigError(f"config: expected a dict, Settings or the path of a YAML file, got {type(config).__name__}")


def _checked(settings: Settings) -> Settings:
    """Return settings that the caller has built, with each value validated again. Raises ConfigError."""
    sections = {name: _validated(section, name) for name, section in settings.named_sections}
    own = evolve(settings, schedules=None, queue=None, path=None)
    return evolve(
        _validated(own, ""), schedules=sections.get("schedules"), queue=sections.get("queue"), path=settings.path
    )


def _validated(made: Made, section: str) -> Made:
    values = {name: value for name, value in asdict(made, recurse=False).items() if value is not None}
    try:
        return structure(type(made), values, Path.cwd())
    except ClassValidationError as error:
        lines = (f"config: {section}{section and '.'}{name}: {fault}" for name, fault in faults(error))
        raise ConfigError("\n".join(lines)) from None


class _Loader:
    """Loads one environment, and collects its faults."""

    def __init__(self, raw: dict[str, Any], environment: str, file: Path | None, base: Path, reader: Reader) -> None:
        self._raw = raw
        self._environment = environment
        self._file = file
        self._base = base
        self._reader = reader
        self._faults: dict[str, None] = {}

    def settings(self) -> Settings:
        """Return the settings. Raises ConfigError with every fault."""
        self._content = self._expanded()
        self._check_keys()
        sections = {name: section for name in self._section_names() if (section := self._section(name)) is not None}
        settings = self._process(sections)
        if settings is not None:
            for fault in cross_faults(settings, self._content):
                self._fault(fault)
        if self._faults or settings is None:
            raise ConfigError("\n".join(self._faults))
        return settings

    def _expanded(self) -> dict[str, Any]:
        try:
            return {str(key): value for key, value in expand(self._raw, os.environ).items()}
        except UnsetVariableError as error:
            raise ConfigError(f"{self._where()}: {'.'.join(error.path)}: {error}") from None
        except RecursionError:
            raise ConfigError(f"{self._where()}: nested too deeply") from None

    def _section_names(self) -> list[str]:
        return [name for name in _TABLES if name in self._content] or [self._reader]

    def _check_keys(self) -> None:
        for key in self._content.keys() - _KEYS:
            self._fault(f"{key}: unknown key{did_you_mean(key, _KEYS)}")
        for name in self._content.keys() & _TABLES.keys():
            section = self._content[name]
            if section is not None and not isinstance(section, dict):
                self._fault(f"{name}: expected a mapping of settings, got {type(section).__name__}")
                continue
            for key in dict(section or {}).keys() - _SECTION_KEYS:
                hint = "; move it to the top level" if key in _PROCESS_KEYS else did_you_mean(str(key), _SECTION_KEYS)
                self._fault(f"{name}.{key}: unknown key{hint}")

    def _section(self, name: str) -> Section | None:
        """Return the section: keys of the top level, overridden by its own."""
        own = self._content.get(name)
        own = own if isinstance(own, dict) else {}
        top = {key: value for key, value in self._content.items() if key in _SECTION_KEYS}
        merged = {key: value for key, value in {**top, **own}.items() if value is not None and key in _SECTION_KEYS}
        compat, ours = _TABLES[name]
        merged.setdefault("table", compat if merged.get("type") == "rdb_compat" else ours)
        return self._structured(Section, merged, lambda key: (name, key) if key in own else (key,))

    def _process(self, sections: dict[str, Section]) -> Settings | None:
        values = {key: value for key, value in self._content.items() if key in _PROCESS_KEYS and value is not None}
        shortest = min((section.alive_time for section in sections.values()), default=300.0)
        values.setdefault("child_heartbeat_limit", min(10.0, shortest / 3))
        limit = values["child_heartbeat_limit"]
        if "child_heartbeat_interval" not in values and isinstance(limit, int | float) and 0 < limit <= MAX_SECONDS:
            values["child_heartbeat_interval"] = min(2.0, limit / 4)
        values["environment"] = self._environment
        settings = self._structured(Settings, values, lambda key: (key,))
        if settings is None:
            return None
        return evolve(settings, path=self._file, schedules=sections.get("schedules"), queue=sections.get("queue"))

    def _structured(
        self, kind: type[Made], values: dict[str, Any], locate: Callable[[str], tuple[str, ...]]
    ) -> Made | None:
        try:
            return structure(kind, values, self._base)
        except ClassValidationError as error:
            for name, fault in faults(error):
                self._field_fault(locate(name), fault, name not in values)
        return None

    def _field_fault(self, path: tuple[str, ...], fault: Exception, missing: bool) -> None:
        if missing:
            self._fault(f"{'.'.join(path)}: missing; {_MISSING[path[-1]]}")
        else:
            self._fault(f"{'.'.join(path)}: {fault}{self._got(str(fault), path)}")

    def _got(self, message: str, path: tuple[str, ...]) -> str:
        """Return `, got …` with the text of the file, so that secrets in variables and URLs are not shown."""
        if not message.startswith("expected") or path[-1] == "url":
            return ""
        found: Any = self._raw
        for key in path:
            if key not in found:  # a default computed from a value with its own fault
                return ""
            found = found[key]
        return f", got {masked_url(shown(found, sys.maxsize))[:100]}"

    def _fault(self, message: str) -> None:
        self._faults[f"{self._where()}: {message}"] = None

    def _where(self) -> str:
        return f"{self._file}:{self._environment}" if self._file else "config"


_MISSING = {
    "type": "expected rdb, redis or rdb_compat",
    "url": "expected a URL like sqlite:///psched.db, mysql://user:password@host:3306/database or redis://host:6379/0",
}


def cross_faults(settings: Settings, given: Mapping[str, Any]) -> list[str]:
    """Return the faults between settings that are valid each by itself. `given`: the keys in the file."""
    faults = []
    limit, interval = settings.child_heartbeat_limit, settings.child_heartbeat_interval
    if interval >= limit:
        faults.append(f"child_heartbeat_interval {interval:g} must be less than child_heartbeat_limit {limit:g}")
    for name, section in (("schedules", settings.schedules), ("queue", settings.queue)):
        if section is not None:
            faults += _lease_faults(settings, section, name, given)
            found = type_fault(section.type, section.url), pooler_fault(section.pooler, section.url)
            faults += [f"{name}: {fault}" for fault in found if fault is not None]
            faults += _compat_key_faults(section, name)
        if section is not None and section.on_failure and section.type == "rdb_compat":
            faults.append(
                f"on_failure: type rdb_compat ({name}) retries without end, so no task ever fails; use type: rdb"
            )
    one, other = settings.schedules, settings.queue
    if one is not None and one.ledger is not None and one.type in ("rdb", "redis"):
        faults.append(f"ledger: type {one.type} always has a ledger; the key is for rdb_compat")
    if one is not None and one.max_attempts is not None and one.type == "rdb_compat":
        faults.append(
            "max_attempts: rdb_compat counts no attempts of schedules and retries without end; "
            "write it under queue:, or use type: rdb"
        )
    if one is not None and other is not None and (one.url, one.table) == (other.url, other.table):
        faults.append(f"queue.table: schedules and queue cannot share the table {one.table!r}; name another one")
    return faults


def _compat_key_faults(section: Section, name: str) -> list[str]:
    """Refuse the keys of PerfectQueue, except for a table that PerfectQueue may share."""
    if section.type == "rdb_compat":
        return []
    given = {
        "disable_resource_limit": section.disable_resource_limit,
        "use_connection_pooling": section.use_connection_pooling,
    }
    return [
        f"{name}: {key}: the key is for rdb_compat, whose table PerfectQueue may share" for key in given if given[key]
    ]


def _lease_faults(settings: Settings, section: Section, name: str, given: Mapping[str, Any]) -> list[str]:
    """A frozen child must be killed before its lease ends, and a lease renewed well before."""
    faults = []
    frozen = settings.child_heartbeat_limit + settings.child_kill_interval
    explicit = given.keys() & {"child_heartbeat_limit", "child_kill_interval"}
    if explicit and frozen >= section.alive_time:
        faults.append(
            f"child_heartbeat_limit {settings.child_heartbeat_limit:g} + child_kill_interval "
            f"{settings.child_kill_interval:g} must be less than {name}'s alive_time {section.alive_time:g}, "
            "or another worker takes the task of a frozen child before it is killed"
        )
    if section.task_heartbeat_interval >= section.alive_time / 2:
        faults.append(
            f"task_heartbeat_interval {section.task_heartbeat_interval:g} must be less than half of {name}'s "
            f"alive_time {section.alive_time:g}"
        )
    return faults
