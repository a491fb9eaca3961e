"""The queue to which task functions submit: the queue of their app, or else the default queue of the process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from psched import fork_safety
from psched.acquisition.table_base import open_table
from psched.async_methods import run_in_thread
from psched.config import Settings, coerce, default_file
from psched.errors import ConfigError
from psched.queue.queue import Queue, open_queue

Config = Settings | Mapping[str, Any] | str | Path
"""A configuration of a queue: settings, one environment as a dict, or the path of a YAML file."""


def open_configured_queue(config: Config, environment: str | None = None) -> Queue:
    """Return the queue that `config` describes. Raises ConfigError, for example if the table is missing."""
    return open_table("queue", coerce(config, environment, reader="queue"), open_queue)


@runtime_checkable
class OpensQueue(Protocol):
    """An object that can open a queue of its own, such as an embedded scheduler."""

    def open_queue(self) -> Queue:
        """Return the queue. Raises ConfigError, for example if the table is missing."""


class DefaultQueue:
    """A queue that is opened at its first use. It can be used by any thread, and in processes forked later."""

    def __init__(self) -> None:
        self._configured: Callable[[], Queue] | None = None
        self._workers: Callable[[], Queue] | None = None
        self._given: Queue | None = None
        self._queue: Queue | None = None
        self.reset_after_fork()
        fork_safety.register_for_fork(self)

    def reset_after_fork(self) -> None:
        """Create a new lock. Called in a forked process, because a thread of the parent may hold the old lock."""
        self._lock = threading.RLock()

    def configure(self, config: Config | Queue | OpensQueue | None, environment: str | None = None) -> None:
        """Use the queue of `config` from now on. Close the previous queue if this object opened it.

        `config` None removes the configured queue. Raises ConfigError.
        """
        given, configured = None, None
        if isinstance(config, Queue):
            given = config
        elif isinstance(config, OpensQueue):
            configured = config.open_queue
        elif config is not None:
            configured = partial(open_configured_queue, coerce(config, environment, reader="queue"))
        with self._lock:
            if self._queue is not None and self._queue is not self._given:
                self._queue.close()
            self._configured, self._given, self._queue = configured, given, given

    def provide(self, open: Callable[[], Queue]) -> None:
        """Set the function that opens the queue if `configure` has set none."""
        with self._lock:
            self._configured = self._configured or open

    def serve(self, settings: Settings) -> None:
        """Use the queue in the worker's settings, if neither `configure` nor `provide` has set a queue."""
        self._workers = None if settings.queue is None else partial(open_configured_queue, settings)

    @property
    def opened(self) -> Queue | None:
        """The queue if it is open, else None."""
        return self._queue

    def get(self) -> Queue:
        """Return the queue, and open it if necessary. Raises ConfigError."""
        with self._lock:
            if self._queue is None:
                self._queue = (self._configured or self._workers or _open_default_file)()
            return self._queue


def _open_default_file() -> Queue:
    file = default_file()
    if not file.is_file():
        named = f" that PSCHED_CONFIG names: {str(file)!r}" if os.environ.get("PSCHED_CONFIG") else f" {str(file)!r}"
        found = "is a folder, not a YAML file" if file.is_dir() else "does not exist"
        remedy = "call psched.configure(config) or app.open(config), or let PSCHED_CONFIG name a file"
        raise ConfigError(f"no queue to submit to: the file{named} {found}; {remedy}")
    return open_configured_queue(file)


default_queue = DefaultQueue()
"""The default queue of this process."""


class AppQueue:
    """The queue of one app. If the app has opened none, it is the default queue of the process."""

    own: Queue | None = None

    def get(self) -> Queue:
        """Return the queue, and open it if necessary. Raises ConfigError."""
        return self.own or default_queue.get()

    async def get_async(self) -> Queue:
        """Return the queue. It is opened in a thread, so that the event loop does not wait for the database."""
        opened = self.own or default_queue.opened
        return await run_in_thread(self.get) if opened is None else opened
