"""Becoming another user for good, before anything of that user's is loaded. Used by pschedd while it starts."""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import dataclass

from psched.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom the daemon runs as: numeric ids, and the login name and home folder its environment tells of."""

    uid: int
    gid: int
    name: str
    home: str

    @classmethod
    def look_up(cls, user: str | None, group: str | None) -> Identity | None:
        """Return who `user:` and `group:` of the configuration are, or None when neither is set.

        `group` defaults to the user's own; a group alone keeps the present user. Raises ConfigError for unknown names.
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
        """Become this user with its groups, for good; nothing happens when we are this user already.

        Raises ConfigError when we may not.
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
