"""A store: `rdb` with two changes. A file has the URL, and tasks with a password in their data are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from psched.backends.rdb import open_stores as open_rdb
from psched.model import NewTask
from psched.store import Stores, StoreSettings


def open_stores(settings: StoreSettings) -> Stores:
    """Return the stores. The configured URL `file:///PATH` names the file with the URL of the database."""
    url = Path(settings.url.removeprefix("file://")).read_text().strip()
    stores = open_rdb(replace(settings, url=url))
    if stores.queue is not None:
        _refuse_passwords(stores.queue)
    return stores


def _refuse_passwords(queue: Any) -> None:
    submit = queue.submit

    def checked(tasks: Sequence[NewTask], connection: Any = None) -> list[str]:
        for task in tasks:
            if "password" in task.data:
                raise ValueError(f"{task.key}: a password must not be in the data of a task")
        existing: list[str] = submit(tasks, connection)
        return existing

    queue.submit = checked
