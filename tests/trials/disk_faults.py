"""The disk of the database is full. In the test process."""

from __future__ import annotations

import sys

from tests.trials.fault import Fault
from tests.trials.stage import ALONE


class DiskFull(Fault):
    """No space is left for the database, nor for its log; later there is, and a server that has died is started."""

    kind = "database: disk full"
    subject = "database"
    lasts = (3.0, 8.0)
    stores = ALONE

    def begin(self) -> None:
        self.all_nodes()
        assert self.stage.disk is not None, "the stage has no small disk"
        self.disk = self.stage.disk
        self.disk.fill()

    def go_on(self) -> None:
        self.disk.fill()

    def heal(self) -> None:
        self.disk.free()
        server = self.stage.server
        if server is not None and len(server.processes) == 1:  # its guardian
            print(f"{server.name} has died of its full disk", file=sys.stderr)
            server.kill()
            server.start()
