"""The unprivileged user that servers run as when tests run as root: PostgreSQL refuses root. In the test process."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path


def server_user() -> str | None:
    """Return "nobody" when the tests run as root; None means the user of the tests."""
    return "nobody" if os.geteuid() == 0 else None


def chown_to_server_user(path: Path) -> None:
    """Make that user the owner of `path`."""
    if user := server_user():
        shutil.chown(path, user)


def run_as_server_user(command: list[str | Path], text: str = "") -> None:
    """Run a command as that user, with `text` on its stdin.

    Raises:
        RuntimeError: it failed; its output is in the message.
    """
    user = server_user()
    done = subprocess.run(
        command,
        input=text,
        text=True,
        capture_output=True,
        cwd="/",
        check=False,
        user=user,
        group=pwd.getpwnam(user).pw_gid if user else None,
        extra_groups=[] if user else None,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
