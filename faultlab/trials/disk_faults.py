"""The disk of the database is full. Runs in the test process."""

from __future__ import annotations

import sys
import time

from faultlab.servers import Server
from faultlab.trials.environment import ALONE
from faultlab.trials.fault import TrialFault
from psched.clock import boottime

_UNDECIDED = 30.0
"""Seconds in which a server either writes again or ends."""


class DiskFull(TrialFault):
    """The database and its log have no space left.

    At the healing there is space, and a server that has died is started.
    """

    kind = "database: disk full"
    subject = "database"
    lasts = (3.0, 8.0)
    stores = ALONE

    def begin(self) -> None:
        self.all_nodes()
        assert self.environment.disk is not None, "the environment has no small disk"
        self.disk = self.environment.disk
        self.disk.fill()

    def go_on(self) -> None:
        self.disk.fill()

    def heal(self) -> None:
        self.disk.free()
        server = self.environment.server
        if server is not None and not self._comes_to_itself(server):
            print(f"{server.name} has ended because its disk was full", file=sys.stderr)
            server.kill()
            server.start()

    def _comes_to_itself(self, server: Server) -> bool:
        """Wait until the server writes again (return True) or has ended (return False).

        A server may end only after a while.
        """
        deadline = boottime() + _UNDECIDED
        while len(server.processes) > 1:  # one of the processes is the wrapper
            try:
                self.environment.server_control.write()
                return True
            except Exception:
                if boottime() > deadline:
                    raise
            time.sleep(0.2)
        return False
