"""pschedd under a real systemd behaves as the unit files promise."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from psched.model import worker_died
from tests.daemon.harness import wait_for
from tests.systemd.machine import Machine
from tests.systemd.service import Service, follow_documents


def test_start_returns_when_the_workers_are_up_and_tasks_run_as_the_service_user(service: Service) -> None:
    follow_documents(service.machine, "start")
    assert service.properties("ActiveState") == {"ActiveState": "active"}
    assert "worker" in service.properties("StatusText")["StatusText"]
    service.wait_for_trace("short")
    assert (service.state / "short").stat().st_uid == service.state.stat().st_uid != 0
    told = (service.state / "environment").read_text().split()
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(told), "handlers do not speak for the service"


def test_reload_changes_the_configuration_and_keeps_the_master(running: Service) -> None:
    config = running.machine.root / "etc/psched/psched.yml"
    main = running.machine.main("pschedd")
    config.write_text(config.read_text().replace("processors: 1", "processors: 2"))
    try:
        running.systemctl("reload")
    except AssertionError as e:
        print(e, running.machine.run("journalctl", "-u", "pschedd", check=False), running.explain())
        raise
    wait_for(lambda: len(running.machine.processes("pschedd")) == 4, running.explain)
    running.wait_until_active()
    assert running.machine.main("pschedd") == main


def test_reload_of_a_broken_configuration_fails_and_keeps_everything_running(running: Service) -> None:
    config = running.machine.root / "etc/psched/psched.yml"
    log = running.machine.root / "var/log/psched/psched.log"
    config.write_text(config.read_text().replace("processors: 1", "processors: many"))
    with pytest.raises(AssertionError, match="Job for pschedd.service failed"):
        running.systemctl("reload")
    assert "processors" in log.read_text()
    told = "processors: expected a whole number"
    wait_for(lambda: told in running.machine.run("journalctl", "-u", "pschedd", check=False), running.explain)
    running.wait_until_active()
    running.forget_traces()
    running.wait_for_trace("short")


def test_the_status_says_that_the_database_does_not_answer(running: Service) -> None:
    def rename(old: str, new: str) -> None:
        code = (
            f"import sqlite3; sqlite3.connect('/var/lib/psched/psched.db').execute('ALTER TABLE {old} RENAME TO {new}')"
        )
        running.machine.run("runuser", "-u", "psched", "--", "/opt/psched/bin/python", "-c", code)

    words = "schedules: polling fails: no such table: psched_schedules"
    rename("psched_schedules", "elsewhere")
    wait_for(lambda: words in running.properties("StatusText")["StatusText"], running.explain)
    rename("elsewhere", "psched_schedules")
    wait_for(lambda: words not in running.properties("StatusText")["StatusText"], running.explain)


def test_a_binary_replace_hands_the_main_process_over(running: Service) -> None:
    old = running.machine.main("pschedd")
    old.send_signal(signal.SIGWINCH)
    wait_for(lambda: not old.is_running(), running.explain)
    running.wait_until_active()
    new = running.machine.main("pschedd")
    new.kill()  # systemd must have noticed whom to watch
    running.wait_until_active(after_restarts=1)


def test_a_frozen_master_is_killed_by_the_watchdog_and_restarted(running: Service) -> None:
    frozen = running.machine.main("pschedd")
    frozen.suspend()
    running.wait_until_active(after_restarts=1)
    assert not frozen.is_running()
    running.forget_traces()
    running.wait_for_trace("short")


def test_a_master_that_is_fed_by_a_turning_loop_outlives_the_watchdog(running: Service) -> None:
    main = running.machine.main("pschedd")
    began = float(running.properties("WatchdogTimestampMonotonic")["WatchdogTimestampMonotonic"])
    wait_for(lambda: _fed(running) - began > 3_000_000, running.explain)
    assert running.machine.main("pschedd") == main


def _fed(service: Service) -> float:
    return float(service.properties("WatchdogTimestampMonotonic")["WatchdogTimestampMonotonic"])


def test_a_killed_master_is_restarted_and_leaves_no_worker_behind(running: Service) -> None:
    before = running.machine.processes("pschedd")
    running.machine.main("pschedd").kill()
    running.wait_until_active(after_restarts=1)
    assert not [process for process in before if process.is_running()]
    running.forget_traces()
    running.psched("add", "s2", "short", "* * * * * *", "{}")  # what the dead have held is not due for a while
    running.wait_for_trace("short")


def test_stop_waits_for_the_running_task(running: Service) -> None:
    running.psched("add", "l1", "long", "* * * * * *", "{}")
    running.wait_for_trace("long-began")
    running.systemctl("stop", "--no-block")
    wait_for(lambda: running.properties("ActiveState")["ActiveState"] == "deactivating", running.explain)
    assert not (running.state / "long-ended").exists()
    (running.state / "long-may-end").touch()
    wait_for(lambda: running.properties("ActiveState")["ActiveState"] == "inactive", running.explain)
    assert (running.state / "long-ended").read_text() == "0", "what a task has started is not signalled either"
    assert running.properties("Result") == {"Result": "success"}
    assert running.machine.processes("pschedd") == []


_TELLS_AT_THE_END = """\
[Unit]
Before=pschedd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
ExecStop=sh -c 'systemctl show -p Result pschedd; cat /var/log/psched/psched.log'
ExecStop=runuser -u psched -- /opt/psched/bin/psched -e production -c /etc/psched/psched.yml --json show l1
StandardOutput=file:/dev/console
"""


def test_a_shutdown_gives_a_long_task_back_before_it_is_killed(running: Service) -> None:
    machine = running.machine
    units = machine.root / "etc/systemd/system"
    (units / "pschedd.service.d/short.conf").write_text(
        "[Service]\nTimeoutStopSec=10\nEnvironment=PSCHED_STOP_TIMEOUT=10\n"
    )
    (units / "teller.service").write_text(_TELLS_AT_THE_END)
    machine.run("systemctl", "daemon-reload")
    running.systemctl("restart")
    machine.run("systemctl", "start", "teller")
    running.psched("add", "l1", "long", "* * * * * *", "{}")
    running.wait_for_trace("long-began")
    # What was taken ahead has a short lease (30 s) until it begins; a long one (300 s) is what must not be waited for.
    leased = wait_for(
        lambda: (due := running.shown("l1")["next_run_time"]) > time.time() + 120 and due, running.explain
    )
    machine.run("systemctl", "poweroff", "--no-block")
    wait_for(lambda: not machine.is_running())
    told = machine.console()
    assert "the 10 s for a stop (PSCHED_STOP_TIMEOUT) have nearly passed" in told
    assert "Result=success" in told
    row = json.loads(next(line for line in told.splitlines() if line.startswith("{")))
    assert row["next_run_time"] < leased - 60, "it is given back: due at once, and not when its lease ends"


def test_what_a_restart_cannot_cure_is_not_restarted(service: Service) -> None:
    config = service.machine.root / "etc/psched/psched.yml"
    config.write_text(config.read_text().replace("processors: 1", "processors: many"))
    with pytest.raises(AssertionError, match="Job for pschedd.service failed"):
        service.systemctl("start")
    wanted = {"ActiveState": "failed", "Result": "exit-code", "ExecMainStatus": "6", "NRestarts": "0"}
    wait_for(lambda: service.properties("ActiveState")["ActiveState"] == "failed", service.explain)
    assert service.properties(*wanted) == wanted


def test_an_instance_serves_the_environment_it_is_named_after(service: Service) -> None:
    instance = Service(service.machine, "pschedd@production")
    instance.systemctl("start")
    instance.wait_for_trace("short")
    instance.systemctl("stop")


def test_two_instances_run_side_by_side_and_are_stopped_one_by_one(service: Service) -> None:
    machine = service.machine
    config = machine.root / "etc/psched/psched.yml"
    text = config.read_text()
    config.write_text(text + text.replace("production:", "staging:").replace("psched.db", "staging.db"))
    command = ("-c", "/etc/psched/psched.yml", "-e")
    machine.run("runuser", "-u", "psched", "--", "/opt/psched/bin/psched", *command, "staging", "init")
    instances = {name: Service(machine, f"pschedd@{name}") for name in ("production", "staging")}
    for instance in instances.values():
        instance.systemctl("start")
        instance.wait_until_active()
    pids = {name: machine.main(instance.name).pid for name, instance in instances.items()}
    instances["production"].wait_for_trace("short")
    stop = machine.run("/opt/psched/bin/pschedd", *command, "staging", "stop")
    own = "/run/psched/pschedd@staging.pid"
    expected = f"pschedd is not running; a daemon of this configuration runs with --pid-file {own}\n"
    assert stop == expected, "the units have pid files of their own"
    machine.run("/opt/psched/bin/pschedd", "--pid-file", own, "stop")
    inactive = {"ActiveState": "inactive", "NRestarts": "0"}
    wait_for(lambda: instances["staging"].properties(*inactive) == inactive, service.explain)
    instances["production"].wait_until_active()
    assert machine.main("pschedd@production").pid == pids["production"]
    instances["production"].systemctl("stop")
    assert machine.processes("pschedd@production") == machine.processes("pschedd@staging") == []


_EATS = """
@app.task("eats")
def eats(task):
    hoard = []
    while True:
        hoard.append(bytes([1]) * 2**22)
"""


def test_a_worker_that_is_killed_for_its_memory_is_replaced_and_the_service_goes_on(service: Service) -> None:
    application = service.machine.root / "srv/app.py"
    application.write_text(application.read_text() + _EATS)
    service.machine.run("systemctl", "set-property", "--runtime", "pschedd", "MemoryMax=300M")
    service.systemctl("start")
    service.wait_for_trace("short")
    main = service.machine.main("pschedd")
    service.psched("add", "e1", "eats", "0 0 1 1 *", "{}", "-s", "2026-01-01T00:00Z")
    error = worker_died("was killed by the kernel for lack of memory")
    wait_for(lambda: service.shown("e1")["last_error"] == error, service.explain)
    service.psched("delete", "e1")
    service.forget_traces()
    service.wait_for_trace("short")
    assert service.machine.main("pschedd") == main
    service.wait_until_active()


def test_the_drop_in_lets_commands_use_the_system_but_gain_nothing(running: Service) -> None:
    home = running.machine.root / "home/psched"
    home.mkdir()
    os.chown(home, running.state.stat().st_uid, 0)
    config = running.machine.root / "etc/psched/psched.yml"
    config.write_text(config.read_text().replace("app: app:app", "app: psched.handlers.command:Command"))
    command = '{"shell": true, "command": "grep NoNewPrivs /proc/self/status > /home/psched/trace"}'
    running.psched("add", "c1", "command", "* * * * * *", command)
    follow_documents(running.machine, "commands")
    trace = home / "trace"
    wait_for(lambda: trace.exists() and trace.read_text().split() == ["NoNewPrivs:", "1"], running.explain)


@pytest.mark.needs("logrotate")
def test_logrotate_moves_the_log_and_the_service_goes_on_in_a_new_one(running: Service) -> None:
    follow_documents(running.machine, "logrotate")
    log = running.machine.root / "var/log/psched/psched.log"
    old = log.stat()
    running.machine.run("logrotate", "--force", "/etc/logrotate.d/psched")
    moved = log.with_name("psched.log.1")
    assert moved.stat().st_ino == old.st_ino
    wait_for(log.read_text, running.explain)
    assert (log.stat().st_uid, log.stat().st_mode & 0o777) == (old.st_uid, 0o640)


@pytest.mark.needs("logrotate")
def test_logrotate_reaches_every_instance(service: Service) -> None:
    instance = Service(service.machine, "pschedd@production")
    instance.systemctl("start")
    instance.wait_for_trace("short")
    follow_documents(service.machine, "logrotate")
    log = service.machine.root / "var/log/psched/psched.log"
    service.machine.run("logrotate", "--force", "/etc/logrotate.d/psched")
    wait_for(log.read_text, instance.explain)
    instance.systemctl("stop")
    service.machine.run("logrotate", "--force", "/etc/logrotate.d/psched")  # what does not run is no failure


@pytest.mark.needs("logrotate")
@pytest.mark.needs("flock")
def test_a_pid_file_of_the_service_s_user_makes_logrotate_signal_nobody(service: Service) -> None:
    follow_documents(service.machine, "logrotate")
    machine = service.machine
    machine.run("install", "-d", "-o", "psched", "/run/psched")
    bystander = int(machine.run("sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"))
    pid_file = machine.root / "run/psched/pschedd.pid"
    for content in ("-1", str(bystander), f"-{bystander}"):
        pretend = (
            f"umask 027; echo {content} > /run/psched/pschedd.pid; flock --no-fork /run/psched/pschedd.pid sleep 1000"
        )
        machine.run("runuser", "-u", "psched", "--", "sh", "-c", f"({pretend}) >/dev/null 2>&1 &")
        wait_for(lambda content=content: _is_locked(machine, pid_file) and pid_file.read_text().strip() == content)
        machine.run("sh", "-c", "date > /var/log/psched/psched.log")
        with pytest.raises(AssertionError, match="names no process|does not hold|runs as root"):
            machine.run("logrotate", "--force", "/etc/logrotate.d/psched")
        machine.run("kill", "-0", str(bystander))
        machine.run("runuser", "-u", "psched", "--", "pkill", "-u", "psched", "sleep")
        wait_for(lambda: not _is_locked(machine, pid_file))


def _is_locked(machine: Machine, file: Path) -> bool:
    """Return whether a process on the machine holds a lock on this file."""
    return file.exists() and f":{file.stat().st_ino} " in machine.run("cat", "/proc/locks")


def test_pschedd_started_by_root_gives_its_privileges_up_before_it_loads_anything(service: Service) -> None:
    service.machine.run("install", "-d", "-o", "psched", "/run/psched")
    config = service.machine.root / "etc/psched/psched.yml"
    config.write_text(config.read_text() + "  user: psched\n")
    application = service.machine.root / "srv/app.py"
    application.write_text(application.read_text() + "Path('/var/lib/psched/imported').touch()\n")
    pschedd = ("/opt/psched/bin/pschedd", "-e", "production", "-c", "/etc/psched/psched.yml")
    service.machine.run(*pschedd, "start")
    service.wait_for_trace("short")
    owners = {(service.state / name).stat().st_uid for name in ("imported", "short")}
    assert owners == {service.state.stat().st_uid}
    assert 0 not in owners
    service.machine.run(*pschedd, "upgrade")
    service.machine.run(*pschedd, "stop")
