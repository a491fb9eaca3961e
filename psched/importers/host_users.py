"""Finds users of the host on which an importer runs."""

from __future__ import annotations

import os
import pwd


def own_user() -> str:
    """Return the name of the importing user, or the user's number if there is no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def home_of(user: str) -> str | None:
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return None
