"""Runs programs, so that a crontab can be replaced without Python code. Used in child processes. See docs/commands.md.

**Every user with write access to the table can run any program as the user of this daemon.** So this application is
only loaded if the configuration names it: `app: psched.handlers.command:Command`.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import threading
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, cast

from attrs import Factory, asdict, evolve, frozen

from psched.application import Base, Dispatch
from psched.application.router import Router, Routes
from psched.config.structuring import Check
from psched.config.validators import seconds
from psched.error_messages import did_you_mean, one_line
from psched.errors import ConfigError
from psched.handlers.options_from_data import flag, list_of, mapping_of, number, read, text
from psched.handlers.process_group import Ending, Program
from psched.stored_error_summary import exception_line
from psched.task import Task

__all__ = ["Command"]

log = logging.getLogger(__name__)

_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL if the run was asked to stop. Less than the default `child_kill_interval`."""
_TIMEOUT_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL if the program has exceeded its own timeout."""
_MAX_ERROR_LENGTH = 300
_INHERITED = ("PATH", "HOME", "LANG", "TZ")
"""The environment variables of the daemon that a program gets. Other variables may contain passwords."""
_MAX_RLIMIT = 2**62
_RLIMITS = {
    name.removeprefix("RLIMIT_").lower(): number
    for name, number in vars(resource).items()
    if name.startswith("RLIMIT_")
}


class CommandError(Exception):
    """The program was not started. The message contains the reason."""


def _argument(value: Any) -> str:
    if "\0" in text(value):
        raise ValueError("a NUL character cannot be passed to a program")
    return str(value)


def _command(value: Any) -> str:
    if not _argument(value):
        raise ValueError("expected a command, not an empty string")
    return str(value)


def _variable(value: Any) -> str:
    if not value or "=" in value:
        raise ValueError("the name of an environment variable must not be empty or contain '='")
    return _argument(value)


def _folder(value: Any) -> str:
    if not _argument(value).startswith("/"):
        raise ValueError(f"expected an absolute path, got {value!r}")
    return str(value)


def _exit_code(value: Any) -> int:
    if not 0 <= number(value) <= 255:
        raise ValueError(f"expected a number from 0 to 255, got {value}")
    return int(value)


def _rlimit(value: Any) -> str:
    if value not in _RLIMITS:
        hint = did_you_mean(value, _RLIMITS, more_follows=True)
        raise ValueError(f"unknown limit {value!r}{hint}; expected one of {', '.join(_RLIMITS)}")
    return str(value)


def _limit(value: Any) -> int:
    if not 0 <= number(value) <= _MAX_RLIMIT:
        raise ValueError(f"expected a whole number from 0 to {_MAX_RLIMIT}, got {value}")
    return int(value)


@frozen(kw_only=True)
class CommandDefaults:
    """The options for all programs, given in `app:`. Options in the data of a task override them."""

    env: Annotated[dict[str, str], Check(mapping_of(_variable, _argument))] = Factory(dict)
    inherit_env: Annotated[bool, Check(flag)] = False
    timeout: Annotated[float | None, Check(seconds(0, above=True))] = None
    rlimits: Annotated[dict[str, int], Check(mapping_of(_rlimit, _limit))] = Factory(dict)
    keep_output: Annotated[bool, Check(flag)] = False


@frozen(kw_only=True)
class CommandOptions(CommandDefaults):
    """The options of one program, given in the data of a task."""

    argv: Annotated[list[str] | None, Check(list_of(_argument))] = None
    shell: Annotated[bool, Check(flag)] = False
    command: Annotated[str | None, Check(_command)] = None
    cwd: Annotated[str | None, Check(_folder)] = None
    ok_exit_codes: Annotated[list[int], Check(list_of(_exit_code))] = Factory(lambda: [0])

    def check(self) -> None:
        """Check that values which are valid one by one do not contradict each other. Raises ValueError."""
        if self.shell and (self.command is None or self.argv is not None):
            raise ValueError('with "shell": true give "command", not "argv"')
        if not self.shell and (self.argv is None or self.command is not None):
            raise ValueError('give "argv", a list of strings, or "shell": true with "command"')
        if self.argv is not None and not self.argv[0]:
            raise ValueError('the first of "argv" must name the program, and is empty')

    @property
    def program(self) -> list[str]:
        return ["/bin/sh", "-c", self.command or ""] if self.argv is None else self.argv


class CommandHandler(Base):
    defaults: ClassVar[CommandDefaults] = CommandDefaults()

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._stop = threading.Event()

    def perform(self) -> None:
        """Run the program, and settle the run by the program's exit code.

        If the program was stopped, the worker releases the run.
        """
        try:
            options = command_options(self.task.data, self.defaults)
            if options.keep_output and self.task.output_problem is not None:
                raise CommandError(f"keep_output: {self.task.output_problem}")
            if self._stop.is_set():
                return
            program = self._start(options)
        except CommandError as error:
            self._fail(str(error))
            return
        with program:
            ending = program.wait(options.timeout, _TIMEOUT_GRACE, _GRACE)
        self._conclude(options, ending)

    def kill(self, reason: Exception) -> None:
        """End the process group. If the program has not started yet, do not start it."""
        self._stop.set()

    def _start(self, options: CommandOptions) -> Program:
        inherited = (
            dict(os.environ) if options.inherit_env else {k: os.environ[k] for k in _INHERITED if k in os.environ}
        )
        environment = inherited | options.env | environment_of(self.task)
        limits = {_RLIMITS[name]: limit for name, limit in options.rlimits.items()}
        try:
            return Program(options.program, options.cwd, environment, self._stop, limits)
        except OSError as error:
            thing = options.program[0] if error.filename is None else error.filename
            raise CommandError(f"cannot run {thing!r}: {error.strerror}") from error
        except ValueError as error:
            raise CommandError(f"cannot run {options.program[0]!r}: {error}") from error

    def _conclude(self, options: CommandOptions, ending: Ending) -> None:
        status = describe(ending, options.timeout)
        if ending.cut_short == "stop":
            status = f"was asked to stop: {status}"
        is_success = ending.cut_short is None and ending.status in options.ok_exit_codes
        if ending.left_behind:
            log.warning("key=%s the program left processes in its process group; they were ended", self.task.key)
        if options.keep_output:
            self._keep(ending.output, status, failed=not is_success)
        if ending.cut_short == "stop":
            log.info("key=%s %s%s", self.task.key, status, quoted(ending.tail))
        elif is_success:
            log.info("key=%s %s%s", self.task.key, status, quoted(ending.tail))
            self.task.finish()
        else:
            self._fail(status, ending.tail, options.keep_output)

    def _keep(self, output: str, status: str, failed: bool) -> None:
        try:
            self.task.keep_output(output, status, failed)
        except Exception as error:  # noqa: BLE001 – the program has run, so the run is settled nevertheless
            log.warning("key=%s the output of this run was not kept: %s", self.task.key, one_line(error))

    def _fail(self, problem: str, tail: str = "", is_kept: bool = False) -> None:
        """Report the error and retry the task.

        `is_kept`: whether the output may be stored. If so, the error also contains the last line of the output.
        """
        log.error("key=%s type=%s %s; retrying later%s", self.task.key, self.task.type, problem, quoted(tail))
        last = (exception_line(tail) or tail.rpartition("\n")[2]) if is_kept else ""
        error = f"{problem}: {last}" if last else problem
        self.task.retry(error=error[:_MAX_ERROR_LENGTH])


class Command(Dispatch):
    """The application that runs programs, for the type `command` and all types that begin with `command.`."""

    routes: ClassVar[Routes] = {re.compile(r"^command(\.|\Z)"): CommandHandler}

    @classmethod
    def with_options(cls, options: Mapping[str, Any]) -> Router:
        """Return a subclass with these `CommandDefaults` for its programs. Raises ConfigError."""
        try:
            defaults = read(CommandDefaults, options)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        handler = type(CommandHandler.__name__, (CommandHandler,), {"defaults": defaults})
        return cast("Router", type(cls.__name__, (cls,), {"routes": dict.fromkeys(cls.routes, handler)}))


def command_options(data: dict[str, Any], defaults: CommandDefaults = CommandDefaults()) -> CommandOptions:
    """Return the options of a task: those in its data, and `defaults` for the others.

    Raises CommandError whose message has every error in the data, on one line.
    """
    try:
        options = read(CommandOptions, asdict(defaults, recurse=False) | data)
        options.check()
    except ValueError as error:
        raise CommandError(f"the data of this task is not valid for a command: {error}") from None
    return evolve(options, env=defaults.env | options.env, rlimits=defaults.rlimits | options.rlimits)


def environment_of(task: Task) -> dict[str, str]:
    variables = {
        "PSCHED_KEY": task.key,
        "PSCHED_TYPE": task.type,
        "PSCHED_SCHEDULED_TIME": str(task.scheduled_time),
        "PSCHED_ATTEMPT": str(task.attempts),
    }
    if task.backfill is not None:
        variables["PSCHED_BACKFILL"] = task.backfill
    return variables if task.fence is None else variables | {"PSCHED_FENCE": str(task.fence)}


def describe(ending: Ending, timeout: float | None) -> str:
    if ending.cut_short == "timeout":
        return f"was ended after its timeout of {timeout:g} s"
    if ending.status < 0:
        names = {known.value: known.name for known in signal.Signals}  # some real-time signals have none
        name = names.get(-ending.status, f"signal {-ending.status}")
        return f"was ended by {name} after {ending.seconds:.3f} s"
    return f"ended with exit status {ending.status} after {ending.seconds:.3f} s"


def quoted(tail: str) -> str:
    """Return the lines of `tail`, each after a mark. No log line begins with this mark."""
    return "".join(f"\n  | {line}" for line in tail.splitlines())
