"""The start of a master, and reasons why a start fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from faultlab.pgbouncer import PgBouncer
from faultlab.servers import Server
from psched.cron import tz_database
from tests.daemon.harness import Daemon

Make = Callable[..., Daemon]


@pytest.mark.parametrize(("options", "expected"), [({}, "wait"), ({"proc_title": "key"}, "s1\\u202e")])
def test_process_titles_name_each_process_and_its_tasks_type_or_key(
    make_daemon: Make, options: dict[str, str], expected: str
) -> None:
    daemon = make_daemon(processors=2, **options).start()
    daemon.add("s1\u202e", "wait")
    daemon.wait_for_trace("began")
    daemon.wait_for(lambda: any("running" in title for title in daemon.titles()))
    master, *workers = daemon.titles()
    assert master == f"psched: master [development] {daemon.config}"
    assert min(workers) == "psched: fetcher idle"
    assert sorted(workers)[1].startswith("psched: worker 1 ")
    assert {title.split(" ", 3)[3] for title in sorted(workers)[1:]} == {"idle", f"running {expected}"}
    daemon.stop()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("VERSION = 1", "VERSION = ", "app.py"),
        ("VERSION = 1", "1 / 0", "division by zero"),
        ("VERSION = 1", "sys.exit(5)", "app"),
        ("VERSION = 1", "os.kill(os.getpid(), 11)", "was killed by SIGSEGV before it was ready"),
        ("VERSION = 1", "os._exit(0)", "ended with exit code 0 before it was ready"),
        ("app = App()", "ap = app = None", "app"),
    ],
)
def test_an_application_that_does_not_load_ends_the_start_with_the_reason(
    make_daemon: Make, old: str, new: str, expected: str
) -> None:
    daemon = make_daemon(processors=2)
    daemon.edit_app(old, new)
    assert daemon.start(wait=False).end() == 1
    errors = daemon.errors()
    assert expected in errors
    assert errors.count("\n") == 1, "one line"
    assert expected in daemon.log


def test_a_worker_killed_several_times_during_its_start_does_not_end_the_start(
    make_daemon: Make, tmp_path: Path
) -> None:
    daemon = make_daemon(child_fork_frequency_limit=0.1)
    times = tmp_path / "times"
    daemon.edit_app(
        "VERSION = 1",
        f"file = open({str(times)!r}, 'a+b'); file.write(b'.'); file.flush(); "
        "file.tell() < 4 and os.kill(os.getpid(), 9)",
    )
    daemon.start()
    assert times.read_bytes() == b"...."
    assert "was killed by SIGKILL before it was ready; next attempt in" in daemon.log
    daemon.stop()


def test_a_missing_table_ends_the_start_and_names_the_remedy(make_daemon: Make) -> None:
    daemon = make_daemon()
    daemon.configure(table="other")
    assert daemon.start(wait=False).end() == 1
    assert "psched init" in daemon.errors()


def test_a_pooler_without_transactions_ends_the_start_and_the_remedy_is_named(
    make_daemon: Make, postgresql: Server
) -> None:
    daemon = make_daemon()
    with PgBouncer(postgresql, "statement") as pooler:
        daemon.configure(url=pooler.url("postgres"))
        assert daemon.start(wait=False).end() == 1
    assert "set its pool_mode = transaction (PgBouncer), or connect to PostgreSQL directly" in daemon.errors()


def test_the_log_names_the_tz_database_in_use(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    assert f"tz database {tz_database()}" in daemon.log
    daemon.stop()


def test_a_log_that_cannot_be_written_ends_the_start(make_daemon: Make) -> None:
    daemon = make_daemon(log="absent/psched.log")
    assert daemon.start(wait=False).end() == 1
    assert "absent" in daemon.errors()


def test_a_stop_while_the_application_is_being_loaded_ends_at_once(make_daemon: Make) -> None:
    daemon = make_daemon()
    daemon.edit_app("VERSION = 1", "time.sleep(60)")
    daemon.start(wait=False)
    daemon.wait_for(lambda: "psched: worker 1 booting" in daemon.titles())
    assert daemon.end(signal.SIGTERM) == 0


def test_a_child_inherits_nothing_of_the_master_or_its_siblings(make_daemon: Make) -> None:
    daemon = make_daemon(processors=3, pid_file="psched.pid", processor_type="process").start()
    seen: set[str] = set()
    for slot in (1, 2, 3):
        worker = daemon.worker(slot)
        files = {str(entry.readlink()) for entry in Path(f"/proc/{worker.pid}/fd").iterdir()}
        pipes = {name for name in files if name.startswith("pipe:")}
        stderr = str(Path(f"/proc/{worker.pid}/fd/2").readlink())
        own = pipes - {stderr}
        assert len(own) in (3, 4), "words, orders, signals, and what a stop wakes it by: each once"
        assert not own & seen
        seen |= own
        assert not [name for name in files if name.endswith("psched.pid") or "eventpoll" in name]
        shared = [entry for entry in Path(f"/proc/{worker.pid}/fd").iterdir() if ".metrics" in str(entry.readlink())]
        assert len(shared) == 1, "its own counters, not those of its siblings"
        assert os.getpgid(worker.pid) == worker.pid
    daemon.add("s1", "print")
    assert daemon.wait_for_trace("ran")["stdin"] == ""
    daemon.stop()


def test_in_the_background_handlers_print_to_the_log(make_daemon: Make) -> None:
    daemon = make_daemon().start(options={"background": True})
    daemon.add("s1", "print")
    daemon.wait_for_log("on stdout\n")
    daemon.wait_for_log("on stderr\n")
    daemon.wait_for_log("key=s1 type=print finished")
    (daemon.folder / "psched.log").rename(daemon.folder / "psched.log.1")
    daemon.signal(signal.SIGUSR2)
    daemon.add("s2", "print", cron="* * * * * *")
    daemon.wait_for_log("on stdout\n")
    daemon.wait_for_log("on stderr\n")
    daemon.stop()


def test_children_draw_different_random_numbers(make_daemon: Make) -> None:
    daemon = make_daemon(max_request_per_child=1).start()
    for key in ("s1", "s2"):
        daemon.add(key, "quick")
    daemon.wait_for_trace("ran", count=2)
    first, second = daemon.traces("ran")
    assert first["pid"] != second["pid"]
    assert first["random"] != second["random"]
    daemon.stop()


def test_the_master_has_one_thread_and_no_connection(make_daemon: Make) -> None:
    daemon = make_daemon(processors=2).start()
    daemon.add("s1", "quick")
    daemon.wait_for_trace("ran")
    assert daemon.master.num_threads() == 1
    assert not [file.path for file in daemon.master.open_files() if "psched.db" in file.path]
    daemon.stop()


def test_threads_share_one_child(make_daemon: Make) -> None:
    daemon = make_daemon(processors=2, processor_type="thread", task_prefetch=0).start()
    for key in ("s1", "s2"):
        daemon.add(key, "wait")
    first, second = daemon.wait_for_trace("began", "s1"), daemon.wait_for_trace("began", "s2")
    assert first["pid"] == second["pid"]
    assert len(daemon.workers()) == 1
    daemon.wait_for(lambda: any("wait, wait" in title for title in daemon.titles()))
    for key in ("s1", "s2"):
        daemon.go(key)
    daemon.wait_for_trace("ended", count=2)
    daemon.stop()


_EMBEDDED = """
import sys
sys.path.insert(0, {folder!r})
from psched.worker import Worker
import app
sys.exit(Worker.run({app}, lambda: {config!r}))
"""


@pytest.mark.parametrize("app", ['"app:app"', "[app.Classes, app.app]"])
def test_worker_run_serves_an_embedding_program(make_daemon: Make, app: str) -> None:
    daemon = make_daemon()
    daemon.add("s1", "quick")
    program = daemon.folder / "program.py"
    program.write_text(_EMBEDDED.format(folder=str(daemon.folder), app=app, config=str(daemon.config)))
    with subprocess.Popen([sys.executable, str(program)], env={**os.environ, "PYTHONPATH": str(Path.cwd())}) as process:
        try:
            daemon.wait_for(lambda: "up: 1 worker" in daemon.log, within=45)  # an interpreter of its own starts first
            daemon.wait_for_trace("ran")
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
        finally:
            process.kill()
