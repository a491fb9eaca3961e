"""A fork server for these tests. A new interpreter would take half a second to import Django, psched and SQLAlchemy."""

from __future__ import annotations

import pytest

from faultlab.forkserver_client import SOCKET
from faultlab.laboratory import Lab

_LOADED = (
    "django.core.management.commands.check", "django.core.management.commands.makemigrations",
    "django.core.management.commands.migrate", "django.core.management.commands.shell",
    "django.core.management.commands.test", "django.contrib.admin", "django.test", "django.views.debug",
    "django.db.backends.sqlite3.base", "django.db.backends.postgresql.base",
)  # fmt: skip
"""Modules of Django that can be imported without settings."""


@pytest.fixture(autouse=True)
def forked_off_with_django(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `Project` fork its programs from a process that has imported Django."""
    monkeypatch.setenv(SOCKET, str(lab.fork_server(_LOADED)))
