"""Worker.run: the daemon as a function, for programs that start the daemon themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from psched.application import ApplicationSpec
from psched.config import Settings, coerce
from psched.supervisor.run_master import run_master

__all__ = ["Worker"]

Config = Settings | Mapping[str, object] | str | Path


class Worker:
    """The daemon, for programs that start the daemon themselves."""

    @staticmethod
    def run(
        app: str | Sequence[str] | object,
        config_loader: Callable[[], Config],
        include: Sequence[str] = (),
        require: Sequence[str] = (),
    ) -> int:
        """Run `app` until a signal ends the daemon. Return the exit code.

        - `app`: "module:NAME", a Dispatch class, an App, or a list of these. A name is imported again at every reload.
          An object is replaced only by a binary upgrade.
        - `config_loader`: returns the configuration: a dict, Settings, or a path. It is called at every reload.
        - `include`, `require`: like the options -I and -r of `psched run`.

        Raises ConfigError.
        """
        names: tuple[object, ...] = tuple(app) if isinstance(app, list | tuple) else (app,)
        return run_master(ApplicationSpec(names, tuple(include), tuple(require)), lambda: coerce(config_loader()))
