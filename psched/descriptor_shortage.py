"""Whether this process can open more file descriptors."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack


def is_shortage(error: OSError) -> bool:
    """Return whether `error` says that no file descriptor is free."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def descriptor_shortage(count: int = 1) -> str | None:
    """Return why this process cannot open `count` more files, such as "Too many open files"; None if it can."""
    with ExitStack() as opened:
        try:
            for _ in range(count):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            return error.strerror if is_shortage(error) else None
    return None
