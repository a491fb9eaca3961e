"""With `apply_at_start` a daemon applies the schedules of its application after its start; errors stop no worker."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from faultlab.laboratory import Lab
from faultlab.proxy import Proxy
from faultlab.redis import Redis
from tests.daemon.harness import Daemon, wait_for

_APP = """\
import psched

app = psched.App(owner={owner!r})

@app.schedule(every="1h", key="declared")
@app.task("declared")
def declared() -> None: ...

@app.task("ran")
def ran() -> None:
    with open("ran", "a") as file:
        file.write("ran")
"""


def test_the_schedules_are_applied_when_the_database_answers_and_after_a_kill_and_a_reload(
    tmp_path: Path, lab: Lab
) -> None:
    server = lab.shared(Redis)
    with Proxy(server.port) as proxy:
        url = server.url(server.create_database(), proxy.port)
        with Daemon(tmp_path, type="redis", url=url, app="shop:app", schedules={"apply_at_start": True}) as daemon:
            (tmp_path / "shop.py").write_text(_APP.format(owner="shop"))
            proxy.refuse()
            daemon.start()
            daemon.wait_for_log("apply_at_start: the database does not answer: ")
            assert daemon.log.count("apply_at_start: the database does not answer") == 1
            daemon.worker().kill()
            daemon.wait_for_log("apply_at_start: the database does not answer: ", count=2)
            proxy.pass_on()
            daemon.wait_for_log("apply_at_start: schedules: 1 added")
            with daemon.schedules() as found:
                assert found["declared"].metadata().policy.owner == "shop"
                (tmp_path / "shop.py").write_text(_APP.format(owner="shop").replace("1h", "2h"))
                daemon.signal(signal.SIGUSR1)
                daemon.wait_for_log("apply_at_start: schedules: 0 added, 1 modified")
                assert found["declared"].metadata().rule.cron == "@every 2h"
            daemon.stop()


def has_applied(daemon: Daemon) -> bool:
    return "apply_at_start: " in daemon.log


def test_two_daemons_at_once_apply_the_schedules_once_and_a_broken_one_works_on(tmp_path: Path) -> None:
    url, daemons = f"sqlite:///{tmp_path / 'shared.db'}", []
    with ExitStack() as stack:
        for name, owner in (("one", "shop"), ("two", "shop"), ("broken", None)):
            (tmp_path / name).mkdir()
            schedules = {"apply_at_start": True}
            daemon = stack.enter_context(Daemon(tmp_path / name, url=url, app="shop:app", schedules=schedules))
            (tmp_path / name / "shop.py").write_text(_APP.format(owner=owner))
            daemons.append(daemon)
        one, two, broken = daemons
        for daemon in (one, two):
            daemon.start()
        for daemon in (one, two):
            wait_for(partial(has_applied, daemon), daemon.explain)
        with one.schedules() as found:
            assert found["declared"].metadata().policy.owner == "shop"
            assert [change.action for change in found.ledger.changes("declared")] == ["add"]
            found["declared"].modify(cron="@every 2h")
            for daemon in (one, two):
                assert "not applied" not in daemon.log
                daemon.stop()
            found.add("ran", "ran", cron="@every 1h", next_run_time=found.store.now())
            broken.start()
            wait_for((tmp_path / "broken" / "ran").exists, broken.explain)
            words = "apply_at_start: the schedules of the application were not applied: shop.declared: the schedule has"
            wait_for(lambda: words in broken.log, broken.explain)
            assert found["declared"].metadata().rule.cron == "@every 2h"
