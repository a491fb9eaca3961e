"""The unprivileged user of servers if the tests run as root, because PostgreSQL refuses root.

Runs in the test process.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path


def server_user() -> str | None:
    """Return "nobody" if the tests run as root; None (the user of the tests) otherwise."""
    return "nobody" if os.geteuid() == 0 else None


def chown_to_server_user(path: Path) -> None:
    """Make the user of the servers the owner of `path`."""
    if user := server_user():
        shutil.chown(path, user)


def run_as_server_user(command: list[str | Path], text: str = "") -> None:
    """Run a command as the user of the servers, with `text` on its standard input.

    Raises:
        RuntimeError: the command failed. The message has its output.
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
        raise RuntimeError(f"{command[0]} ended with exit code {done.returncode}: {done.stdout}{done.stderr}")
