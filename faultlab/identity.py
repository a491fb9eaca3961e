"""Whom servers run as: an ordinary user, also when the tests are root's. In the test process."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path


def ordinary_user() -> str | None:
    """Return whom servers run as: nobody when we are root, as PostgreSQL refuses root; None means ourselves."""
    return "nobody" if os.geteuid() == 0 else None


def own(path: Path) -> None:
    """Give a path to the user that servers run as."""
    if user := ordinary_user():
        shutil.chown(path, user)


def run_as_owner(command: list[str | Path], text: str = "") -> None:
    """Run a command as the servers' user, `text` on its stdin.

    Raises:
        RuntimeError: it failed; its output is in the message.
    """
    user = ordinary_user()
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
