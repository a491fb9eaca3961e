"""Writes a file atomically: a crash or a full disk never leaves half a file."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_MODE = 0o666
"""The mode of a new file before the umask is applied."""


def write_atomically(path: Path, parts: Iterable[str], *, replace: bool = True, mode: int | None = None) -> None:
    """Write a text to a temporary file in the same folder, and rename it to `path`.

    If `path` is a symbolic link, its target is replaced. A replaced file keeps its mode, unless `mode` is given. A pipe
    or another special file is written in place. Raises FileExistsError if `path` exists and `replace` is false. Every
    OSError names `path`.
    """
    try:
        found = _stat(path)
        if found is not None and not replace:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if found is not None and not stat.S_ISREG(found.st_mode):
            with path.open("w", encoding="utf-8") as file:
                file.writelines(parts)
            return
        if found is not None and mode is None:
            mode = stat.S_IMODE(found.st_mode)
        _replace(Path(os.path.realpath(path)), parts, replace, mode)
    except OSError as error:
        if error.errno is None:
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _replace(path: Path, parts: Iterable[str], replace: bool, mode: int | None) -> None:
    temporary = path.with_name(f".psched-{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            file.writelines(parts)
            file.flush()
            os.fsync(descriptor)
        if replace:
            temporary.replace(path)
        else:
            _link(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _link(temporary: Path, path: Path) -> None:
    """Give the temporary file the name `path`. Raises FileExistsError if `path` exists."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # this file system has no hard links
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE))
        temporary.replace(path)
