"""A scheduler adds only threads to its host process, and ends with the process. Its store may go away and come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from faultlab.laboratory import Lab
from faultlab.mariadb import MariaDB
from faultlab.pgbouncer import PgBouncer
from faultlab.postgresql import PostgreSQL
from faultlab.redis import Redis
from faultlab.servers import Server
from psched import ConfigError, create_scheduler
from tests.programs import ROOT
from tests.scheduler.site import Site

_WITHOUT_STOP = """\
import sys, time
import psched
scheduler = psched.create_scheduler(sys.argv[1], poll_interval=0.1)

@scheduler.bind("slow")
def slow(data):
    print("begun", flush=True)
    time.sleep(0.5)
    print("done", flush=True)

scheduler.push("slow")
scheduler.start()
time.sleep(60)
"""


def test_a_script_that_forgets_to_stop_ends_at_ctrl_c_after_the_running_handler(site: Site) -> None:
    script = subprocess.Popen(
        [sys.executable, "-c", _WITHOUT_STOP, site.url],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert script.stdout is not None
    assert script.stdout.readline() == "begun\n"
    script.send_signal(signal.SIGINT)
    output, errors = script.communicate()
    assert output == "done\n"
    assert errors.rstrip().endswith("KeyboardInterrupt")


def test_a_scheduler_sets_no_signal_handlers_and_starts_no_processes(site: Site) -> None:
    numbers = sorted(signal.valid_signals())
    before = [signal.getsignal(number) for number in numbers]
    scheduler = site.scheduler()
    scheduler.bind("task", lambda data: None)
    threads = set(threading.enumerate())
    with scheduler:
        site.wait_until_over(scheduler.push("task"))
        assert all(thread.daemon for thread in set(threading.enumerate()) - threads)
        assert [signal.getsignal(number) for number in numbers] == before
        assert not subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "psched handler"], check=False).stdout


@pytest.mark.parametrize("kind", [MariaDB, PostgreSQL, Redis], ids=lambda kind: kind.name)
def test_start_refuses_a_wrong_password_without_showing_it(lab: Lab, site: Site, kind: type[Server]) -> None:
    server = lab.shared(kind)
    with server.database() as url:
        scheduler = site.scheduler(url=url.replace("secret", "wrong-one"))
        with pytest.raises(ConfigError) as refusal:
            scheduler.start()
    assert "wrong-one" not in str(refusal.value)


def wait_for_more(site: Site, occurrences: list[int], count: int = 1) -> None:
    """Wait until more than `count` further occurrences have fired."""
    before = len(occurrences)
    site.wait_for(lambda: len(occurrences) > before + count)


def test_a_scheduler_goes_on_after_redis_stops_or_loses_scripts_or_clients(lab: Lab, site: Site) -> None:
    """Occurrences that become due while the store is away are not skipped."""
    with lab.private(Redis) as server:
        url = server.url(server.create_database())
        server.stop()
        scheduler = site.scheduler(url=url)
        occurrences: list[int] = []

        @scheduler.bind("tick")
        def tick(data: object) -> None:
            assert scheduler.current is not None
            occurrences.append(scheduler.current.scheduled_time)

        scheduler.register("tick", cron="* * * * * *", retry=True, retry_timeout=1)
        with scheduler:
            server.start()
            wait_for_more(site, occurrences)
            server.command("SCRIPT", "FLUSH")
            server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            wait_for_more(site, occurrences)
            server.kill()
            assert not threading.Event().wait(3)
            server.start()
            wait_for_more(site, occurrences, 4)
        fired = sorted(set(occurrences))  # several threads catch up, and what lost its answer is begun again
        assert fired == list(range(fired[0], fired[-1] + 1))


@pytest.mark.parametrize(
    ("mode", "setting"), [("transaction", "auto"), ("transaction", "transaction"), ("session", "session")]
)
def test_tasks_run_behind_a_pooler(postgresql: Server, mode: str, setting: str) -> None:
    with postgresql.database() as url, PgBouncer(postgresql, mode, sessions=10) as pooler:
        ran = threading.Event()
        scheduler = create_scheduler(pooler.url(url.rpartition("/")[2]), pooler=setting)
        scheduler.bind("task", lambda data: ran.set())
        with scheduler:
            scheduler.push("task")
            assert ran.wait(10)
