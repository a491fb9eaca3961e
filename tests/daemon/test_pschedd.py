"""pschedd's commands on a real daemon, and the exit codes that scripts rely on."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import psutil
import pytest

from psched.cli.pschedd import has_ended
from tests.daemon.pschedd import Pschedd


@pytest.fixture
def ticking(pschedd: Pschedd) -> Pschedd:
    """A daemon that is not started, with a schedule that is due every second."""
    pschedd.add("s1", "short")
    return pschedd


@pytest.fixture
def busy(pschedd: Pschedd) -> Pschedd:
    """A daemon that is running a task, which does not end by itself."""
    pschedd.add("l1", "long")
    pschedd.start()
    pschedd.wait_for("long-began")
    pschedd.wait_until(lambda: "running long" in pschedd("status").stdout)  # a worker says so at its next beat
    return pschedd


def test_start_returns_when_the_workers_are_up_and_stop_when_all_have_left(ticking: Pschedd) -> None:
    done = ticking("start")
    pid = ticking.pid
    assert (done.returncode, done.stdout) == (0, f"pschedd has started (pid {pid})\n"), done.stderr
    workers = psutil.Process(pid).children()
    assert len(workers) == 1
    assert ticking("status").returncode == 0
    ticking.wait_for("short")
    assert ticking("stop").returncode == 0
    assert not any(process.is_running() for process in workers)
    assert ticking("status").returncode == 3
    assert not (ticking.etc / "psched.pid").exists()


def test_the_daemon_is_detached_and_its_files_are_where_the_configuration_is(ticking: Pschedd) -> None:
    ticking.configure("log: psched.log", "log: logs.txt")
    pid = ticking.start()
    trace = ticking.wait_for("short")
    ticking.wait_until(trace.read_text)
    session, folder, stdin_is_null = trace.read_text().splitlines()[0].split()
    assert int(session) not in (os.getsid(0), 0)
    assert (folder, stdin_is_null) == ("/", "True")
    assert psutil.Process(pid).terminal() is None
    assert stat.S_IMODE(trace.stat().st_mode) == 0o640, "umask 027"
    assert stat.S_IMODE((ticking.etc / "logs.txt").stat().st_mode) == 0o640
    assert ticking("stop").returncode == 0


def test_starting_twice_is_starting_once(pschedd: Pschedd) -> None:
    pid = pschedd.start()
    again = pschedd("start")
    assert again.returncode == 0
    assert f"already running with pid {pid}" in again.stdout
    assert pschedd.pid == pid


def test_a_failed_start_prints_the_reason(pschedd: Pschedd) -> None:
    pschedd.configure("app: app:app", "app: nowhere:app")
    done = pschedd("start")
    assert done.returncode == 1
    assert "nowhere" in done.stderr
    assert pschedd("status").returncode == 3


def test_a_missing_table_is_named_with_its_remedy(pschedd: Pschedd) -> None:
    pschedd.configure("type: rdb", "table: other\n  type: rdb")
    done = pschedd("start")
    assert done.returncode == 1
    assert "psched init" in done.stderr


def test_a_database_that_refuses_is_named_without_a_traceback(pschedd: Pschedd) -> None:
    (pschedd.etc / "psched.db").write_text("this is a letter, not a database; " * 50)
    done = pschedd("start")
    assert done.returncode == 1
    [told] = done.stderr.splitlines()
    assert told.startswith("pschedd did not start: ")
    assert "psched.db is not an SQLite database; configure another file, or move this one away" in told
    assert told.endswith(f"; its log is {pschedd.etc / 'psched.log'}")
    assert "Traceback" not in pschedd.log


def test_a_database_that_refuses_is_reported_without_a_traceback(pschedd: Pschedd) -> None:
    pschedd.start()
    with closing(sqlite3.connect(pschedd.etc / "psched.db")) as database:
        database.execute("DROP TABLE psched_schedules")
    pschedd.wait_until(lambda: "polling fails: no such table" in pschedd.log)
    assert "Traceback" not in pschedd.log
    pschedd.create_tables()
    pschedd.wait_until(lambda: "answers again" in pschedd.log)


def test_a_start_that_takes_too_long_goes_on_by_itself(ticking: Pschedd) -> None:
    application = ticking.etc / "app.py"
    application.write_text("import time\ntime.sleep(2)\n" + application.read_text())
    done = ticking("start", "--timeout", "0.2")
    assert done.returncode == 1
    assert "has not started within 0.2 s; pschedd is still trying (see pschedd status)" in done.stderr
    ticking.wait_for("short")


def test_a_log_that_cannot_be_written_is_reported_in_one_line(pschedd: Pschedd) -> None:
    pschedd.configure("log: psched.log", "log: none/psched.log")
    done = pschedd("start")
    assert done.returncode == 1
    assert "none/psched.log" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("action", ["stop", "status", "reopen-logs"])
def test_a_broken_configuration_does_not_bar_the_way_to_the_daemon(pschedd: Pschedd, action: str) -> None:
    pschedd.start()
    pschedd.configure("processors: 1", "processors: many")
    told = pschedd(action).stderr.splitlines()
    assert "processors" in told[0]
    assert told[1] == f"pschedd: until this is fixed, use: pschedd {action} --pid-file {pschedd.etc}/psched.pid"
    assert pschedd(action, "--pid-file", "etc/psched.pid").returncode == 0


def test_status_shows_a_database_that_does_not_answer(pschedd: Pschedd) -> None:
    pschedd.start()
    with closing(sqlite3.connect(pschedd.etc / "psched.db")) as database:
        database.execute("DROP TABLE psched_schedules")
    pschedd.wait_until(lambda: "trouble: schedules: polling fails: no such table" in pschedd("status").stdout)
    assert pschedd("status").returncode == 0
    pschedd.create_tables()
    pschedd.wait_until(lambda: "trouble" not in pschedd("status").stdout)


def test_status_shows_a_worker_that_cannot_start(pschedd: Pschedd) -> None:
    pschedd.configure("child_fork_frequency_limit: 0.1", "child_fork_frequency_limit: 0.5")
    pschedd.start()
    application = pschedd.etc / "app.py"
    application.rename(pschedd.etc / "gone.py")
    os.kill(psutil.Process(pschedd.pid).children()[0].pid, signal.SIGKILL)
    pschedd.wait_until(lambda: "trouble: worker 1 cannot start: module 'app' not found" in pschedd("status").stdout)
    (pschedd.etc / "gone.py").rename(application)
    pschedd.wait_until(lambda: "trouble" not in pschedd("status").stdout)


def test_status_lists_the_workers_in_order(pschedd: Pschedd) -> None:
    pschedd.configure("processors: 1", "processors: 3")
    pschedd.start()
    first = int(pschedd("status").stdout.splitlines()[1].partition("(pid ")[2].rstrip(")"))
    os.kill(first, signal.SIGKILL)
    pschedd.wait_until(lambda: pschedd.log.count("replacing it") and pschedd("status").stdout.count("idle") == 3)
    assert [line.split()[1] for line in pschedd("status").stdout.splitlines()[1:]] == ["1", "2", "3"]


def test_status_has_a_line_for_a_worker_that_is_being_restarted(pschedd: Pschedd) -> None:
    pschedd.configure("child_fork_frequency_limit: 0.1", "child_fork_frequency_limit: 600")
    pschedd.configure("processors: 1", "processors: 2")
    pschedd.start()
    killed: list[str] = []
    for _ in range(2):  # the first one is replaced at once
        pschedd.wait_until(lambda: _pid_of(pschedd, "worker 2 idle") not in [None, *killed])
        killed.append(str(_pid_of(pschedd, "worker 2 idle")))
        os.kill(int(killed[-1]), signal.SIGSEGV)
    pending = r"  worker 2 is being restarted \(in 5\d\d\.\d s\); the previous one was killed by SIGSEGV\n"
    pschedd.wait_until(lambda: re.search(pending, pschedd("status").stdout))
    assert _pid_of(pschedd, "worker 1 idle") is not None
    assert pschedd("stop").returncode == 0


def _pid_of(pschedd: Pschedd, worker: str) -> str | None:
    """Return the pid that `status` shows for this worker; None if `status` does not show it."""
    found = re.search(rf"{worker} \(pid (\d+)\)", pschedd("status").stdout)
    return None if found is None else found[1]


def test_start_and_status_say_that_the_database_does_not_answer(pschedd: Pschedd) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"postgresql://psched@127.0.0.1:{silent.getsockname()[1]}/psched"
        pschedd.configure("url: sqlite:///psched.db", f"url: {url}")
        done = pschedd("start")
        assert done.returncode == 0
        trouble = "schedules: the database does not answer: "
        assert f"pschedd: warning: the workers are running, but cannot work yet: {trouble}" in done.stderr
        told = pschedd("status").stdout
        assert f"  trouble: {trouble}" in told
        assert "worker 1 waiting for the database (pid " in told
        assert pschedd("stop", "--immediate").returncode == 0


def test_closed_standard_streams_do_no_harm(ticking: Pschedd) -> None:
    command = "bin/pschedd start <&- >&- 2>&-"
    assert subprocess.run(command, shell=True, cwd=ticking.folder, timeout=50, check=False).returncode == 0  # noqa: S602
    ticking.wait_for("short")
    assert ticking("stop").returncode == 0


@pytest.mark.parametrize("line", ["processors: many", "log: psched.log", "pid_file: psched.pid"])
def test_a_configuration_that_cannot_serve_is_exit_code_6(pschedd: Pschedd, line: str) -> None:
    if line == "processors: many":
        pschedd.configure("processors: 1", line)
    else:
        pschedd.configure(line, "")
    done = pschedd("start")
    assert done.returncode == 6
    assert line.partition(":")[0] in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_stop_succeeds_and_other_signals_fail_when_no_daemon_runs(pschedd: Pschedd) -> None:
    codes = {action: pschedd(action).returncode for action in ("stop", "status", "reload", "upgrade", "reopen-logs")}
    assert codes == {"stop": 0, "status": 3, "reload": 7, "upgrade": 7, "reopen-logs": 7}


def test_a_killed_daemon_leaves_a_stale_file_that_is_no_obstacle(pschedd: Pschedd) -> None:
    master = psutil.Process(pschedd.start())
    family = [master, *master.children()]
    master.kill()
    psutil.wait_procs(family, timeout=10)
    died = pschedd("status")
    assert (died.returncode, "died" in died.stdout) == (1, True)
    assert pschedd("stop").returncode == 0
    assert pschedd.start() != master.pid


def test_stop_prints_the_running_tasks_and_immediate_gives_them_back(busy: Pschedd) -> None:
    impatient = busy("stop", "--timeout", "2")
    assert impatient.returncode == 1
    assert impatient.stdout.count("running long") == 1
    assert "running long" in impatient.stderr
    assert busy("stop", "--immediate").returncode == 0
    assert not (busy.etc / "long-ended").exists()


def test_stop_lets_the_running_task_finish(busy: Pschedd) -> None:
    pid = busy.pid
    assert busy("stop", "--timeout", "0").returncode == 1
    (busy.etc / "long-may-end").touch()
    assert busy("stop").returncode == 0
    assert pid is not None
    assert has_ended(pid)
    assert (busy.etc / "long-ended").exists()


def test_reload_takes_the_new_configuration_and_keeps_the_master(pschedd: Pschedd) -> None:
    pid = pschedd.start()
    pschedd.configure("processors: 1", "processors: 2")
    for options in ((), ("--immediate",)):
        before = psutil.Process(pid).children()
        assert pschedd("reload", *options).returncode == 0
        pschedd.wait_until(partial(_are_new, pid, before, 3))  # with the fetching child
    assert pschedd.pid == pid


@pytest.mark.parametrize("options", [(), pytest.param(("--immediate",), marks=pytest.mark.trial)])
@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        (
            "psched.yml",
            "development: {type: rdb, url: 'sqlite:///psched.db', processors: many}",
            "processors: expected",
        ),
        ("psched.yml", "development: [", "psched.yml"),
        ("app.py", "import absent_module", "absent_module"),
        ("app.py", "import os; os._exit(0)", "the process that loaded the application ended with exit code 0"),
    ],
)
def test_a_reload_that_is_refused_fails_with_the_reason(
    ticking: Pschedd, options: tuple[str, ...], file: str, text: str, expected: str
) -> None:
    pid = ticking.start()
    good = (ticking.etc / file).read_text()
    (ticking.etc / file).write_text(text)
    refused = ticking("reload", *options, "--pid-file", "etc/psched.pid")
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"pschedd was not reloaded (pid {pid} continues unchanged): ")
    assert expected in refused.stderr
    (ticking.etc / file).write_text(good)
    (ticking.etc / "short").unlink(missing_ok=True)
    ticking.wait_for("short")
    accepted = ticking("reload", *options)
    assert (accepted.returncode, accepted.stdout) == (0, f"pschedd has reloaded (pid {pid})\n"), accepted.stderr


def test_reload_waits_for_the_outcome_of_its_own_request(pschedd: Pschedd) -> None:
    """A second request starts the dry run again. Both commands wait for the new dry run."""
    pschedd.start()
    application = pschedd.etc / "app.py"
    good = application.read_text()
    marks = "import pathlib, time\nmark = pathlib.Path(__file__).parent\n"
    application.write_text(
        marks + '(mark / "loading").touch()\nwhile not (mark / "go").exists(): time.sleep(0.02)\nraise KeyError("late")'
    )
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(pschedd, "reload")
        pschedd.wait_for("loading")
        assert pschedd("status").returncode == 0  # takes as long as a command does that does not wait
        assert not first.done()
        later = application.stat().st_mtime + 2  # what is compiled is known by its second
        application.write_text(good)
        os.utime(application, (later, later))
        second = pool.submit(pschedd, "reload")
        assert second.result().returncode == 0, second.result().stderr
        assert first.result().returncode == 0, first.result().stderr
    assert "reloading" in pschedd.log


def test_a_reload_that_a_stop_overtakes_fails(pschedd: Pschedd) -> None:
    pschedd.start()
    application = pschedd.etc / "app.py"
    application.write_text("import pathlib, time\npathlib.Path(__file__).with_name('loading').touch()\ntime.sleep(600)")
    with ThreadPoolExecutor(1) as pool:
        reload = pool.submit(pschedd, "reload")
        pschedd.wait_for("loading")
        assert pschedd("stop").returncode == 0
        assert reload.result().returncode == 1
    assert "this master is stopping" in reload.result().stderr or "ended before the reload" in reload.result().stderr


def _are_new(master: int, before: list[psutil.Process], count: int) -> bool:
    """Return whether the master has exactly `count` children that are not among `before`."""
    return len(set(psutil.Process(master).children()) - set(before)) == count


def test_restart_makes_a_new_master_but_not_of_a_broken_configuration(pschedd: Pschedd) -> None:
    first = pschedd.start()
    assert pschedd("restart").returncode == 0
    second = pschedd.pid
    assert second not in (None, first)
    pschedd.configure("processors: 1", "processors: none")
    assert pschedd("restart").returncode == 6
    assert pschedd("status").returncode == 4
    assert pschedd.pid == second
    assert pschedd("--pid-file", str(pschedd.etc / "psched.pid"), "stop").returncode == 0, "needs no configuration"


@pytest.mark.parametrize("options", [(), pytest.param(("--immediate",), marks=pytest.mark.trial)])
def test_upgrade_hands_the_daemon_over_to_a_new_master(ticking: Pschedd, options: tuple[str, ...]) -> None:
    old = ticking.start()
    done = ticking("upgrade", *options)
    assert done.returncode == 0, done.stderr + ticking.log
    new = ticking.pid
    assert new not in (None, old)
    assert str(new) in done.stdout
    ticking.wait_until(lambda: has_ended(old))
    (ticking.etc / "short").unlink(missing_ok=True)
    ticking.wait_for("short")


def test_an_upgrade_that_fails_leaves_the_old_master_in_charge(ticking: Pschedd) -> None:
    old = ticking.start()
    (ticking.etc / "app.py").rename(ticking.etc / "gone.py")
    done = ticking("upgrade")  # its limit is longer than what a command is waited for here
    assert done.returncode == 1
    assert f"pschedd was not replaced (pid {old} continues): the new master ended with exit code " in done.stderr
    assert "module 'app' not found" in done.stderr
    assert ticking.pid == old


def test_an_upgrade_that_takes_too_long_is_reported(busy: Pschedd) -> None:
    application = busy.etc / "app.py"
    application.write_text("import time\ntime.sleep(3)\n" + application.read_text())
    done = busy("upgrade", "--timeout", "0.2")
    assert done.returncode == 1
    assert "was not replaced within 0.2 s" in done.stderr


def test_reopen_logs_writes_to_a_new_file_after_the_old_was_moved(ticking: Pschedd) -> None:
    ticking.start()
    log = ticking.etc / "psched.log"
    log.rename(ticking.etc / "psched.log.1")
    assert ticking("reopen-logs").returncode == 0
    ticking.wait_until(lambda: log.exists() and log.read_text())


def test_run_is_the_same_daemon_in_the_foreground(ticking: Pschedd) -> None:
    with ticking.foreground() as process:
        ticking.wait_for("short")
        assert ticking.pid == process.pid
        second = ticking("run")
        assert second.returncode == 1
        assert f"already running with pid {process.pid}" in second.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert (ticking.etc / "psched.pid").read_text() == ""
    assert ticking("status").returncode == 3


def test_usage_errors_are_exit_code_2_and_help_names_every_command(pschedd: Pschedd) -> None:
    assert pschedd("begin").returncode == 2
    text = pschedd("--help").stdout
    for action in ("start", "stop", "restart", "reload", "reopen-logs", "upgrade", "status", "run"):
        assert f"  {action} " in text
