"""A worker dies while the database is unavailable: the next child waits for the database, and logs this once."""

from __future__ import annotations

from pathlib import Path

from faultlab.laboratory import Lab
from faultlab.mariadb import MariaDB
from tests.daemon.harness import Daemon


def test_what_a_dead_worker_held_is_given_back_after_the_outage_and_complained_of_once(
    lab: Lab, tmp_path: Path
) -> None:
    with (
        lab.private(MariaDB) as server,
        Daemon(tmp_path, url=server.url(server.create_database())) as daemon,
    ):
        daemon.add("s1", "wait")
        daemon.start()
        first = daemon.wait_for_trace("began")
        server.kill()
        daemon.worker().kill()
        daemon.wait_for_successor(1, first["pid"])
        daemon.wait_for_log("releasing the leases of dead child")
        daemon.pause(1)  # in which it has tried four times
        server.start()
        daemon.wait_for_trace("began", count=2)
        assert daemon.log.count("releasing the leases of dead child") == 1
        daemon.stop()
