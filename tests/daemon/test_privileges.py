"""The daemon drops all privileges, permanently, or says why it cannot."""

from __future__ import annotations

import grp
import json
import os
import pwd
import subprocess
import sys

import pytest

from faultlab.prerequisites import not_run
from psched.errors import ConfigError
from psched.supervisor.daemonize import Identity

_ASSUME = """
import json, os, sys
from psched.supervisor.daemonize import Identity
Identity.look_up(sys.argv[1] or None, sys.argv[2] or None).assume()
try:
    os.setuid(0)
    back = True
except PermissionError:
    back = False
print(json.dumps([os.getresuid(), os.getresgid(), sorted(os.getgroups()), os.environ["HOME"], back]))
"""


def _assume(user: str, group: str) -> list[object]:
    if os.geteuid() != 0:
        not_run("only root can become another user, run the tests as root")
    done = subprocess.run([sys.executable, "-c", _ASSUME, user, group], capture_output=True, check=True)
    answer: list[object] = json.loads(done.stdout)
    return answer


def test_root_becomes_the_user_with_its_groups_and_cannot_go_back() -> None:
    account = pwd.getpwnam("nobody")
    groups = sorted(os.getgrouplist("nobody", account.pw_gid))
    assert _assume("nobody", "") == [[account.pw_uid] * 3, [account.pw_gid] * 3, groups, account.pw_dir, False]


def test_a_group_of_its_own_replaces_the_users() -> None:
    gid = grp.getgrnam("daemon").gr_gid
    answer = _assume("nobody", "daemon")
    assert answer[1] == [gid] * 3
    assert gid in answer[2]
    assert 0 not in answer[2]


def test_nothing_configured_changes_nothing() -> None:
    assert Identity.look_up(None, None) is None


def test_ones_own_name_needs_no_privilege() -> None:
    before = os.getgroups()
    account = pwd.getpwuid(os.geteuid())
    identity = Identity.look_up(account.pw_name, grp.getgrgid(os.getegid()).gr_name)
    assert identity is not None
    identity.assume()
    assert os.getgroups() == before


def test_unknown_names_are_named_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="there is no user 'nosuchuser'.*useradd"):
        Identity.look_up("nosuchuser", None)
    with pytest.raises(ConfigError, match="there is no group 'nosuchgroup'.*groupadd"):
        Identity.look_up(None, "nosuchgroup")
