"""Every error of the command line as one line on standard error, and its exit code; never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from psched.backends import is_driver_error
from psched.config import Section
from psched.errors import ConfigError, ScheduleError
from psched.store import LeaseStore

FAILED = 1
USAGE = 2
INTERRUPTED = 130
"""What a shell reports of a command that SIGINT ended."""


class DatabaseError(Exception):
    """The database is away or refuses; the message names it without its password."""


def guarded(program: str, run: Callable[[], int]) -> int:
    """Return the exit code of `run()`; what it raises is told on standard error, in the name of `program`.

    With PSCHED_DEBUG in the environment errors are raised, to be seen with their traceback.
    """
    _have_streams()
    try:
        code = run()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _end_output()
        return FAILED
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.ClickException as error:
        _tell(program, _usage(error))
        return USAGE if isinstance(error, click.UsageError) else FAILED
    except Exception as error:
        if os.environ.get("PSCHED_DEBUG"):
            raise
        _tell(program, _message(error))
        _end_output()
        return FAILED


@contextmanager
def database_errors(section: Section, store: LeaseStore) -> Iterator[None]:
    """Turn what the database's driver raises within into DatabaseError."""
    try:
        yield
    except Exception as error:
        if not is_driver_error(error):
            raise
        raise DatabaseError(explain(error, section, store)) from error


def explain(error: Exception, section: Section, store: LeaseStore) -> str:
    """Return what a driver's error means and what to do, with the database's name but without its password."""
    if store.is_unavailable(error):
        return (
            f"the database {section.masked_url} is not available: {reason(error)} "
            "(does it run, and is `url:` right? `psched doctor` looks closer)"
        )
    return f"the database {section.masked_url} refuses: {reason(error)}"


def reason(error: BaseException) -> str:
    """Return what `error` says, on one line and without the statement that SQLAlchemy adds."""
    original = getattr(error, "orig", None)  # SQLAlchemy's errors hold the driver's
    cause = original if isinstance(original, BaseException) else error
    arguments = cause.args
    if len(arguments) == 2 and isinstance(arguments[0], int):
        return f"{_one_line(str(arguments[1]))} ({arguments[0]})"
    return _one_line(str(cause)) or type(cause).__name__


def _message(error: Exception) -> str:
    """Return the lines that tell of `error`; what psched does not raise on purpose is named as such."""
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, ScheduleError | DatabaseError | ValueError):
        return _one_line(str(error))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return f"{type(error).__name__}: {reason(error)} (not foreseen; with PSCHED_DEBUG=1 its traceback is shown)"


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    help_ = f" (see {context.command_path} --help)" if context is not None else ""
    return f"{_one_line(error.format_message())}{help_}"


def _tell(program: str, message: str) -> None:
    for line in message.splitlines():
        click.echo(f"{program}: {line}", err=True)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _have_streams() -> None:
    """Open what the caller has closed, lest a pipe of ours becomes descriptor 0, 1 or 2; let any text be printed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest that is free: the one that was closed
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a terminal may not know a key's letters


def _end_output() -> None:
    """Let output that cannot be written go nowhere, so that closing it at exit does not fail once more."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
