"""Prints every error of a command as one line on standard error, and returns the exit code."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from psched.backends import database_problem, is_driver_error
from psched.config import Section
from psched.error_messages import ESCAPES, on_one_line, one_line
from psched.errors import ConfigError, ScheduleError
from psched.process import journal
from psched.store import LeaseStore

FAILED = 1
_LONGEST_LINE = 2000
_END = 500
"""The number of characters at the end of a long line that are kept when the line is cut. They often contain the remedy.
"""
INTERRUPTED = 130
"""The exit code that shells use for a command ended by SIGINT."""


class DatabaseError(Exception):
    """The database is unavailable or refuses the request. The message shows the database's URL without the password."""


def run_command(command: click.Command, arguments: Sequence[str] | None = None, chosen: object = None) -> int:
    """Run a command, and return its exit code. Errors are printed to standard error as `command: message`.

    If PSCHED_DEBUG is set, errors other than usage errors are raised instead. `chosen`: initial values of the common
    options; the command line overrides them.
    """
    program = str(command.name)
    _open_streams()
    if logging.lastResort is not None:  # `lastResort` prints warnings as long as no log is set up
        logging.lastResort.setFormatter(logging.Formatter("warning: %(message)s"))
    try:
        code = command.main(arguments, program, standalone_mode=False, obj=chosen) or 0
        sys.stdout.flush()
        return int(code)
    except BrokenPipeError:
        _end_output()
        return FAILED
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        help_ = f" (see {context.command_path} --help)" if context is not None else ""
        print_error(program, f"{on_one_line(error.format_message())}{help_}")
        return error.exit_code
    except Exception as error:
        if os.environ.get("PSCHED_DEBUG"):
            raise
        print_error(program, "stdout: " * _is_of_stdout(error) + _message(error))
        _end_output()
        return FAILED


@contextmanager
def database_errors(section: Section, store: LeaseStore) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_driver_error(error):
            raise
        states = store.is_unavailable(error), store.is_refused(error)
        raise DatabaseError(database_problem(section.masked_url, error, *states)) from error


def _message(error: Exception) -> str:
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, ScheduleError | DatabaseError | ValueError):
        return on_one_line(str(error))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}".translate(ESCAPES)
    return f"{type(error).__name__}: {one_line(error)} (unexpected; set PSCHED_DEBUG=1 to see the traceback)"


def _is_of_stdout(error: Exception) -> bool:
    """Return whether `error` is a failed write to standard output, for example because the disk is full.

    Such an error names no file.
    """
    if not isinstance(error, OSError) or error.filename:
        return False
    try:
        sys.stdout.flush()
    except OSError:
        return True
    # With PYTHONUNBUFFERED Python does not keep the text that it failed to write, so there is nothing to flush.
    return bool(getattr(sys.stdout, "write_through", False)) and error.errno in {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
    }


def print_error(program: str, message: str) -> None:
    """Print each line of a message to standard error. Escapes control characters, and cuts long lines."""
    journal.write_error("\n".join(f"{program}: {_printable(line)}" for line in message.splitlines()))


def _printable(line: str) -> str:
    shown = line.translate(ESCAPES)
    return shown if len(shown) <= _LONGEST_LINE else f"{shown[: _LONGEST_LINE - _END]} … {shown[-_END:]}"


def _open_streams() -> None:
    """Open standard streams that are closed, so that no pipe gets descriptor 0, 1 or 2.

    Also let standard output escape characters that it cannot encode.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor: the one of the closed stream
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a key may have letters that the terminal lacks


def _end_output() -> None:
    """Discard output that cannot be written, so that closing the stream at exit does not fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
