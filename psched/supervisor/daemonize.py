"""Daemonize: go into the background, become the configured user, and report the outcome to `pschedd start`.

`pschedd start` forks. The child becomes a daemon by python-daemon: it has its own session and closed descriptors, and
its working directory is `/`. It answers through a pipe: "ready" when its children are up, or the reason why it cannot
start. If the pipe ends without an answer, the daemon has died, and its log contains the reason.
"""

from __future__ import annotations

import grp
import os
import pwd
import select
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from daemon import DaemonContext

from psched.errors import ConfigError
from psched.supervisor.pidfile import PidFileError

_READY = b"ready\n"
_UMASK = 0o027


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a start: `ready`, or `died`, or neither if the timeout has passed.

    `reason`: why the daemon died; empty if only its log contains the reason.
    """

    ready: bool
    died: bool
    reason: str = ""


Serve = Callable[[Callable[[], None], Callable[[str], None]], int]
"""Called as `serve(ready, failed)`. It calls `ready()` when the daemon is up, or `failed(reason)` if it cannot start.
"""


def detach(serve: Serve, keep: Iterable[int], timeout: float | None) -> Outcome:
    """Run `serve` in a daemon. Return when it has called `ready` or `failed`, or when the daemon has died.

    `keep`: descriptors that the daemon keeps open. The daemon exits with the code that `serve` returns. `timeout`:
    after this many seconds, `detach` returns in any case, and the daemon continues. None: no limit.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _serve_detached(serve, [*keep, writer], writer)
    os.close(writer)
    os.waitpid(child, 0)  # python-daemon ends this child at once and continues in a grandchild
    try:
        if not select.select([reader], [], [], timeout)[0]:
            return Outcome(ready=False, died=False)
        answer = os.read(reader, 65536)
    finally:
        os.close(reader)
    if answer == _READY:
        return Outcome(ready=True, died=False)
    return Outcome(ready=False, died=True, reason=answer.decode(errors="replace").strip())


def _serve_detached(serve: Serve, keep: list[int], writer: int) -> None:
    """Become the daemon, run `serve`, and raise SystemExit with its code.

    If `serve` answers more than once, the waiting command gets only the first answer.
    """
    with (
        DaemonContext(detach_process=True, umask=_UMASK, files_preserve=keep, signal_map={}),
        os.fdopen(writer, "wb", buffering=0) as pipe,
    ):

        def answer(words: bytes = _READY) -> None:
            with suppress(BrokenPipeError):  # the command no longer waits
                if not pipe.closed:
                    pipe.write(words)
            pipe.close()

        try:
            code = serve(answer, lambda reason: answer(reason.encode()))
        except Exception as error:  # noqa: BLE001 – the command that waits for the answer reports it
            expected = isinstance(error, ConfigError | PidFileError | OSError)
            answer((str(error) if expected else f"{type(error).__name__}: {error}").encode())
            code = 1
        raise SystemExit(code)


@dataclass(frozen=True, slots=True)
class Identity:
    uid: int
    gid: int
    name: str
    home: str

    @classmethod
    def look_up(cls, user: str | None, group: str | None) -> Identity | None:
        """Look up a user and a group. Return None if neither is given. Raises ConfigError.

        `group`: the default is the user's own group. `user`: the default is the current user.
        """
        if user is None and group is None:
            return None
        try:
            account = pwd.getpwuid(os.geteuid()) if user is None else pwd.getpwnam(user)
        except KeyError:
            raise ConfigError(
                f"user: there is no user {user!r} on this host; create it with useradd --system"
            ) from None
        try:
            gid = account.pw_gid if group is None else grp.getgrnam(group).gr_gid
        except KeyError:
            raise ConfigError(
                f"group: there is no group {group!r} on this host; create it with groupadd --system"
            ) from None
        return cls(account.pw_uid, gid, account.pw_name, account.pw_dir)

    def assume(self) -> None:
        """Become this user, with the user's groups, for the rest of the process.

        Raises ConfigError if that is not permitted.
        """
        if (os.geteuid(), os.getegid()) == (self.uid, self.gid):
            return
        try:
            os.initgroups(self.name, self.gid)
            os.setgid(self.gid)
            os.setuid(self.uid)
        except PermissionError:
            raise ConfigError(
                f"user: only root can become {self.name!r}; start as root or as that user, or remove user: and group:"
            ) from None
        os.environ.update(HOME=self.home, USER=self.name, LOGNAME=self.name)
