"""Attaches the telemetry listeners that the configuration names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from psched.config.settings import Settings
from psched.error_messages import did_you_mean
from psched.errors import ConfigError

_PACKAGE = "psched.contrib"
_IN_WORKER = "in_worker"


def attach_listeners(settings: Settings, in_worker: bool = False) -> None:
    """Call the `instrument` of each module that `telemetry:` names, with the module's options. Raises ConfigError.

    `in_worker`: whether this process is a worker of psched; False for a process that submits.
    """
    for listener in settings.telemetry:
        module = listener_module(listener.name)
        known = _options(module)
        for name in listener.options.keys() - known:
            expected = f"expected {' or '.join(sorted(known))}" if known else "expected no options"
            fault = f"unknown option, {expected}{did_you_mean(name, known)}"
            raise ConfigError(f"config: telemetry.{listener.name}.{name}: {fault}")
        try:
            module.instrument(**listener.options, in_worker=in_worker)
        except ValueError as error:
            raise ConfigError(f"config: telemetry.{listener.name}: {error}") from error


def preload_listeners(settings: Settings) -> None:
    """Import those modules in `telemetry:` that are part of psched. Raises ConfigError.

    The master does this before it forks, so that children share the memory of the libraries.
    """
    for listener in settings.telemetry:
        if "." not in listener.name:
            module = listener_module(listener.name)
            with _missing_named(listener.name):
                module.preload()


def listener_module(name: str) -> ModuleType:
    """Return the module that `telemetry:` calls `name`. Raises ConfigError."""
    module = name if "." in name else f"{_PACKAGE}.{name}"
    with _missing_named(name):
        found = import_module(module)
    if not callable(getattr(found, "instrument", None)):
        raise ConfigError(f"config: telemetry: {module} has no function `instrument`")
    return found


@contextmanager
def _missing_named(name: str) -> Iterator[None]:
    """Turn the ImportError of a missing module into a ConfigError with the remedy."""
    try:
        yield
    except ImportError as error:
        missing = error.name or ""
        if missing == f"{_PACKAGE}.{name}":
            remedy = f"{name!r} is not a module of psched; expected otel, or your own module such as team.tracing"
        elif "." in name:
            remedy = f"cannot import {name}: {error}"
        else:
            remedy = f"{name} needs {missing.partition('.')[0]}; install it with: pip install 'psched[{name}]'"
        raise ConfigError(f"config: telemetry: {remedy}") from error


def _options(module: ModuleType) -> set[str]:
    import inspect  # noqa: PLC0415 – `import psched` must not load it

    return set(inspect.signature(module.instrument).parameters) - {_IN_WORKER}
