"""Loads an application by the names in a config or on a command line.

Used in child processes, commands and tests, but never in the master.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from psched.application.ordered_routers import Application
from psched.application.router import Router
from psched.config.validators import NameWithOptions, is_file
from psched.error_messages import did_you_mean
from psched.errors import ConfigError

_OWN_FOLDER = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class ApplicationSpec:
    """Which application to load.

    `names` lists Dispatch classes and Apps, by name or as objects, in the order of routing. A name is `module:NAME`.
    NAME alone is searched in the `require` modules, beginning with the last. A name may come with options for
    `Router.with_options`.

    - `include`: folders to add to the import path.
    - `require`: modules (`pkg.mod`) or files (`path/to/file.py`) to load, in this order.
    """

    names: tuple[str | NameWithOptions | object, ...] = ()
    include: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    sections: tuple[tuple[str, ApplicationSpec], ...] = ()
    """The spec of each section, if the sections differ. The other fields then hold the applications, folders and
    modules of all sections."""


def load(spec: ApplicationSpec) -> Application:
    """Import the modules of `spec` and check every route. Raises ConfigError with a one-line message and the remedy."""
    if spec.sections:
        loaded = {}
        for section, own in spec.sections:
            try:
                loaded[section] = load(own)
            except ConfigError as error:
                raise ConfigError(f"{section}: {error}") from error
        return Application((), loaded)
    if not spec.names:
        raise ConfigError(
            "no application given; name one (`module:NAME`) on the command line or as `app:` in the config"
        )
    required = load_modules(spec.include, spec.require)
    return Application(tuple(_router(name, required) for name in spec.names))


def load_modules(include: Sequence[str], require: Sequence[str]) -> dict[str, ModuleType]:
    """Put the folders `include` first in the import path. Return the modules in `require`, by name.

    Raises ConfigError.
    """
    importlib.invalidate_caches()
    for folder in include:
        if not os.path.isdir(folder):  # noqa: PTH112 – a Path raises for a name that is too long
            problem = "is not a folder" if os.path.exists(folder) else "does not exist"  # noqa: PTH110 – as above
            raise ConfigError(f"include (-I): {folder!r} {problem}; expected a folder")
    paths = [str(Path(folder).absolute()) for folder in include]
    sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
    return {name: _require(name) for name in require}


def _require(name: str) -> ModuleType:
    return import_file(name) if is_file(name) else import_module(name)


def _router(name: str | object, required: dict[str, ModuleType]) -> Router:
    given, options = (name.name, name.options) if isinstance(name, NameWithOptions) else (name, {})
    router = _lookup(given, required) if isinstance(given, str) else given
    shown = given if isinstance(given, str) else repr(given)
    if not _is_router(router):
        raise ConfigError(f"{shown} is neither a Dispatch subclass nor an App, but {router!r}")
    try:
        router = router.with_options(options) if options else router
        router.check()
    except ConfigError as error:
        raise ConfigError(f"{shown}: {error}") from error
    return router


def _is_router(found: object) -> TypeGuard[Router]:
    """Return whether `found` is an App or a Dispatch class. The class App itself does not count."""
    is_class = isinstance(found, type) and issubclass(found, Router) and inspect.ismethod(found.check)
    return is_class or isinstance(found, Router)


def _lookup(name: str, required: dict[str, ModuleType]) -> object:
    """Return the object `name`. The part before `:` is a module, or the stem or path of a required file."""
    module_name, _, attribute = name.rpartition(":")
    if not attribute:
        raise ConfigError(f"{name!r} is not the name of an application; expected `module:NAME`")
    for given, module in reversed(required.items()):
        here = module_name in (given, Path(given).stem) if module_name else hasattr(module, attribute.partition(".")[0])
        if here:
            return find(module, attribute, _is_router)
    if module_name:
        return find(_require(module_name), attribute, _is_router)
    if not required:
        module_name, _, last = attribute.rpartition(".")
        example = f"{module_name or 'module'}:{last}"
        raise ConfigError(f"{attribute!r} names no module; write `{example}`, or name its module by -r")
    known = [key for module in required.values() for key, value in vars(module).items() if _is_router(value)]
    raise ConfigError(f"no {attribute!r} in {', '.join(reversed(required))}{did_you_mean(attribute, known)}")


def import_module(name: str) -> ModuleType:
    """Return the module called `name` (`pkg.mod`). Raises ConfigError whose cause is the original error."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{name!r} is not a module name; expected `pkg.mod`")
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(_complaint(name, error)) from error


def import_file(file: str) -> ModuleType:
    """Return the module in `file`. Each file is loaded once per process.

    Raises ConfigError whose cause is the original error. In sys.modules the module has the name of the file's stem, or
    another name if this one is taken. The file's folder becomes the last folder of the import path. So the module can
    import its neighbours, and they hide no installed modules.
    """
    path = Path(file).resolve()
    if not os.path.isfile(path):  # noqa: PTH113 – as in `load_modules`
        where = "" if path == Path(file) else f" (looked for {path})"
        raise ConfigError(f"there is no file {file!r} to load{where}")
    loaded = (module for module in list(sys.modules.values()) if getattr(module, "__file__", None) == str(path))
    return next(loaded, None) or _execute(path, _free_name(path))


def find(module: ModuleType, name: str, is_wanted: Callable[[object], bool] | None = None) -> Any:
    """Return the attribute `name` of `module`. The name may contain dots. Raises ConfigError.

    `is_wanted`: whether an attribute may be proposed instead of a missing one. None: each public attribute.
    """
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            public = {key: value for key, value in getattr(found, "__dict__", {}).items() if not key.startswith("_")}
            wanted = [key for key, value in public.items() if is_wanted is None or is_wanted(value)]
            raise ConfigError(f"no {name!r} in {module.__name__}{did_you_mean(part, wanted)}") from None
    return found


def _free_name(path: Path) -> str:
    """Return a name for the file's module that sys.modules does not contain.

    So a file such as `calendar.py` hides no other module.
    """
    stem = path.stem
    if stem in sys.modules or not stem.isidentifier():
        return f"{stem}@{path}"
    spec = importlib.util.find_spec(stem)
    return stem if spec is None or spec.origin == str(path) else f"{stem}@{path}"


def _execute(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{str(path)!r} is not a Python file; its name must end with .py")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(_complaint(str(path), error)) from error
    return module


def _complaint(name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        searched = ", ".join(sys.path[:2])
        return f"module {name!r} not found (searched {searched}, …); add its folder with -I or `include:`"
    if isinstance(error, SyntaxError):
        return f"cannot import {name!r}: {error.filename}:{error.lineno}: {error.msg}"
    text = " ".join(str(error).split())
    kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
    return f"cannot import {name!r}: {kind}{text}{_place(error)}"


def _place(error: BaseException) -> str:
    """Return ` (file:line)` for the last executed line outside of this package."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<frozen ", _OWN_FOLDER)):
            return f" ({frame.filename}:{frame.lineno})"
    return ""
