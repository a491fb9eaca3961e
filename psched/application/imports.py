"""Imports the user's modules and says in one line why one cannot be imported. In children, the probe and `doctor`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from psched.errors import ConfigError
from psched.suggest import did_you_mean

_OWN_FOLDER = str(Path(__file__).parent)


def import_module(name: str) -> ModuleType:
    """Return the module called `name` (`pkg.mod`). Raises ConfigError, with the original error as its cause."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{name!r} is no module name; expected `pkg.mod`")
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(_complaint(name, error)) from error


def import_file(file: str) -> ModuleType:
    """Return the module in `file`, loaded once per process. Raises ConfigError, with the original error as its cause.

    Its name in sys.modules is its stem, unless that is taken. Its folder is appended to the import path, so that it can
    import its neighbours, and these hide no installed module.
    """
    path = Path(file).resolve()
    if not path.is_file():
        raise ConfigError(
            f"there is no file {file!r} to load" + ("" if path == Path(file) else f" (looked for {path})")
        )
    loaded = _loaded(path)
    return _execute(path, _free_name(path)) if loaded is None else loaded


def find(module: ModuleType, name: str) -> Any:
    """Return the attribute `name` (dots allowed) of `module`. Raises ConfigError."""
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            known = [known for known in vars(found) if not known.startswith("_")] if hasattr(found, "__dict__") else []
            raise ConfigError(f"no {name!r} in {module.__name__}{did_you_mean(part, known)}") from None
    return found


def _loaded(path: Path) -> ModuleType | None:
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path):
            return module
    return None


def _free_name(path: Path) -> str:
    """Return a key for sys.modules under which a file such as `calendar.py` hides no other module."""
    stem = path.stem
    if stem in sys.modules or not stem.isidentifier():
        return f"{stem}@{path}"
    spec = importlib.util.find_spec(stem)
    return stem if spec is None or spec.origin == str(path) else f"{stem}@{path}"


def _execute(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{str(path)!r} is no Python file; its name must end with .py")
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
    """Return ` (file:line)` of the last line that ran outside of this package."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<frozen ", _OWN_FOLDER)):
            return f" ({frame.filename}:{frame.lineno})"
    return ""
