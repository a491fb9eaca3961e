"""A reload that would fail is refused before any worker is replaced."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.daemon.harness import Daemon

Make = Callable[..., Daemon]


def goes_on(daemon: Daemon, worker: int) -> None:
    """Check that the old worker still runs the old code, and that a restart with good code then succeeds."""
    daemon.add("s1", "quick")
    trace = daemon.wait_for_trace("ran", "s1")
    assert (trace["pid"], trace["version"]) == (worker, 1)
    daemon.write_app((daemon.folder / "app.py.old").read_text())
    daemon.configure(processors=2)
    daemon.signal(signal.SIGUSR1)
    daemon.wait_for_workers(2)
    daemon.stop()


@pytest.fixture
def keeping(daemon: Daemon) -> Daemon:
    """A daemon whose application has been copied to `app.py.old`."""
    (daemon.folder / "app.py.old").write_text((daemon.folder / "app.py").read_text())
    return daemon


@pytest.mark.parametrize("number", [signal.SIGUSR1, pytest.param(signal.SIGHUP, marks=pytest.mark.trial)])
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("development: [", "psched.yml"),
        ("production: {type: rdb, url: 'sqlite://'}", "development"),
        ("development: {type: rdb, url: 'sqlite:///psched.db', processors: many}", "processors"),
        ("development: {type: absent, url: 'sqlite:///psched.db', app: 'app:app', include: .}", "absent"),
        (
            "development: {type: rdb, url: 'sqlite:///psched.db', app: 'app:app', include: ., log: absent/log}",
            "absent/log",
        ),
    ],
)
def test_a_broken_configuration_leaves_the_daemon_unchanged(
    keeping: Daemon, number: int, config: str, expected: str
) -> None:
    worker = keeping.worker().pid
    keeping.config.write_text(config)
    keeping.signal(number)
    keeping.wait_for_log("reload refused")
    assert expected in keeping.log.partition("reload refused")[2]
    keeping.configure()
    goes_on(keeping, worker)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("VERSION = ", "app.py"),
        ("import absent_module", "absent_module"),
        ("sys.exit(1)", "app"),
        ("os._exit(0)", "the process that loaded the application ended with exit code 0"),
        ("os.kill(os.getpid(), 9)", "the process that loaded the application was killed by SIGKILL"),
    ],
)
def test_an_application_that_does_not_load_leaves_the_old_children_running(
    keeping: Daemon, code: str, expected: str
) -> None:
    worker = keeping.worker().pid
    keeping.edit_app("VERSION = 1", code)
    keeping.signal(signal.SIGHUP)
    keeping.wait_for_log("reload refused")
    assert expected in keeping.log.partition("reload refused")[2]
    goes_on(keeping, worker)


def test_an_application_that_hangs_while_it_is_loaded_is_given_up(make_daemon: Make) -> None:
    daemon = make_daemon().start(options={"reload_limit": 0.5})
    (daemon.folder / "app.py.old").write_text((daemon.folder / "app.py").read_text())
    worker = daemon.worker().pid
    daemon.edit_app("VERSION = 1", "time.sleep(60)")
    daemon.signal(signal.SIGUSR1)
    daemon.wait_for_log("reload refused: the application was not loaded within 0.5 s")
    goes_on(daemon, worker)


def test_a_stop_during_the_dry_run_ends_both(daemon: Daemon) -> None:
    daemon.edit_app("VERSION = 1", "time.sleep(60)")
    daemon.signal(signal.SIGUSR1)
    daemon.wait_for(lambda: any("dry run" in title for title in daemon.titles()))
    assert daemon.end(signal.SIGTERM) == 0


def test_restarts_in_quick_succession_end_with_the_last_state(make_daemon: Make) -> None:
    daemon = make_daemon(processors=2).start()
    for version in range(2, 12):
        daemon.edit_app(f"VERSION = {version - 1}", f"VERSION = {version}")
        daemon.configure(processors=version % 3 + 1)
        daemon.signal(signal.SIGUSR1 if version % 2 else signal.SIGHUP)
    daemon.wait_for_workers(3)
    daemon.wait_for_log("reloading")
    daemon.wait_for(lambda: not any("dry run" in title for title in daemon.titles()))
    for number in range(8):
        daemon.add(f"s{number}", "quick")
    daemon.wait_for_trace("ran", count=8)
    assert {trace["version"] for trace in daemon.traces("ran")} == {11}
    daemon.stop()


def test_the_log_and_the_processor_type_may_change(make_daemon: Make) -> None:
    daemon = make_daemon(processors=2).start()
    daemon.configure(log="other.log", processor_type="thread")
    daemon.signal(signal.SIGUSR1)
    daemon.wait_for_workers(1)
    daemon.add("s1", "quick")
    daemon.wait_for_trace("ran")
    other = daemon.folder / "other.log"
    daemon.wait_for(lambda: other.exists() and "key=s1 type=quick finished" in other.read_text())
    daemon.stop()
    assert "psched.supervisor.run_master: ended" in other.read_text()


def test_a_slot_that_was_given_up_while_busy_may_come_back(make_daemon: Make) -> None:
    daemon = make_daemon(processors=2, task_prefetch=0).start()
    for key in ("s1", "s2"):
        daemon.add(key, "wait")
    daemon.wait_for_trace("began", count=2)
    for number in (1, 2):
        daemon.configure(processors=number)
        daemon.signal(signal.SIGUSR1)
        daemon.wait_for_log("reloading each worker after its task", count=number)
    before = {worker.pid for worker in daemon.workers().values()}
    for key in ("s1", "s2"):
        daemon.go(key)
    daemon.wait_for(lambda: not before & {worker.pid for worker in daemon.workers().values()})
    daemon.wait_for_workers(2)
    daemon.stop()
