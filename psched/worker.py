"""Worker.run: the daemon as a function, for programs that run it themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from psched.application import ApplicationSpec
from psched.config import Settings, coerce
from psched.supervisor.run_master import run_master

__all__ = ["Worker"]

Config = Settings | Mapping[str, object] | str | Path


class Worker:
    """The daemon, run by another program than `psched` or `pschedd`."""

    @staticmethod
    def run(
        app: str | Sequence[str] | object,
        config_loader: Callable[[], Config],
        include: Sequence[str] = (),
        require: Sequence[str] = (),
    ) -> int:
        """Run `app` until a signal ends it; returns the exit code.

        `app`: "module:NAME", a Dispatch class, an App, or a list of these. A string is imported anew at every reload;
        an object is replaced by a binary upgrade only. `config_loader` returns the configuration (a dict,
        Settings, or a path) and is called at every reload. `include` and `require`: as the options -I and -r of
        `psched run`. Raises ConfigError.
        """
        names: tuple[object, ...] = tuple(app) if isinstance(app, list | tuple) else (app,)
        return run_master(ApplicationSpec(names, tuple(include), tuple(require)), lambda: coerce(config_loader()))
