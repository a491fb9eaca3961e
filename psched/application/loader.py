"""Loads an application by the names in a config or on a command line. In children and `doctor`, never the master."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import cast

from psched.application.app import App
from psched.application.dispatch import Dispatch
from psched.application.imports import find, import_file, import_module
from psched.application.routing import Application, Router
from psched.errors import ConfigError
from psched.suggest import did_you_mean


@dataclass(frozen=True, slots=True)
class ApplicationSpec:
    """Which application to load: `names` of Dispatch classes and Apps, or these objects, in the order of routing.

    A name is `module:NAME`, or NAME alone, looked up in the `require` modules, last first. `include`: folders for the
    import path. `require`: modules (`pkg.mod`) or files (`path/to/file.py`), loaded in order.
    """

    names: tuple[str | object, ...] = ()
    include: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    sections: tuple[tuple[str, ApplicationSpec], ...] = ()
    """The spec of each section where they differ; the fields above then hold the names of all sections."""


def load(spec: ApplicationSpec) -> Application:
    """Import the modules of `spec` and check every route. Raises ConfigError: one line with the remedy."""
    if spec.sections:
        return Application((), {section: _load_section(section, own) for section, own in spec.sections})
    if not spec.names:
        raise ConfigError(
            "no application given; name one (`module:NAME`) on the command line or as `app:` in the config"
        )
    required = load_modules(spec.include, spec.require)
    return Application(tuple(_router(name, required) for name in spec.names))


def load_modules(include: Sequence[str], require: Sequence[str]) -> list[tuple[str, ModuleType]]:
    """Put the folders `include` on the import path, and return the modules `require` by their names.

    Raises ConfigError.
    """
    importlib.invalidate_caches()
    _include(include)
    return [(name, _require(name)) for name in require]


def _load_section(section: str, spec: ApplicationSpec) -> Application:
    try:
        return load(spec)
    except ConfigError as error:
        raise ConfigError(f"{section}: {error}") from error


def _include(folders: Sequence[str]) -> None:
    """Put `folders` at the head of the import path, in their order."""
    for folder in folders:
        if not Path(folder).is_dir():
            raise ConfigError(f"the folder {folder!r} to be included (-I) does not exist")
    paths = [str(Path(folder).absolute()) for folder in folders]
    sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]


def _require(name: str) -> ModuleType:
    return import_file(name) if name.endswith(".py") or os.sep in name else import_module(name)


def _router(name: str | object, required: Sequence[tuple[str, ModuleType]]) -> Router:
    router = _lookup(name, required) if isinstance(name, str) else name
    shown = name if isinstance(name, str) else repr(name)
    if not _is_router(router):
        raise ConfigError(f"{shown} is neither a Dispatch subclass nor an App, but {router!r}")
    try:
        cast(Router, router).check()
    except ConfigError as error:
        raise ConfigError(f"{shown}: {error}") from error
    return cast(Router, router)


def _is_router(found: object) -> bool:
    return isinstance(found, App) or (isinstance(found, type) and issubclass(found, Dispatch))


def _lookup(name: str, required: Sequence[tuple[str, ModuleType]]) -> object:
    module_name, _, attribute = name.rpartition(":")
    if not attribute:
        raise ConfigError(f"{name!r} names no application; expected `module:NAME`")
    if module_name:
        return find(_module(module_name, required), attribute)
    for _, module in reversed(required):
        if _has(module, attribute):
            return find(module, attribute)
    raise ConfigError(_not_found(attribute, required))


def _module(name: str, required: Sequence[tuple[str, ModuleType]]) -> ModuleType:
    """Return the module `name`: a required file by its stem or path, otherwise a module that Python finds."""
    for given, module in reversed(required):
        if name in (given, Path(given).stem):
            return module
    return _require(name)


def _has(module: ModuleType, name: str) -> bool:
    return hasattr(module, name.partition(".")[0])


def _not_found(name: str, required: Sequence[tuple[str, ModuleType]]) -> str:
    if not required:
        module, _, attribute = name.rpartition(".")
        example = f"{module or 'module'}:{attribute}"
        return f"{name!r} names no module; write `{example}`, or -r the module that defines it"
    known = [key for _, module in required for key, value in vars(module).items() if _is_router(value)]
    places = ", ".join(given for given, _ in reversed(required))
    return f"no {name!r} in {places}{did_you_mean(name, known)}"
