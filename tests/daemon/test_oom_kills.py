"""A child that the kernel kills because memory ran out is recognised, and its task stores this as its error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faultlab.prerequisites import not_run
from psched.model import worker_died
from psched.supervisor.child import OomKills, find_oom_counter
from tests.daemon.harness import Daemon, wait_for

V1 = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / {top}/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
35 31 0:32 {root} {top} rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / {top}/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2 = "30 23 0:26 {root} {top} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
EATS = """
@app.task("eat")
def eats(task: Task) -> None:
    trace("began", task)
    hoard = []
    while True:
        hoard.append(bytes([1]) * 2**22)
"""
WORDS = {
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n",
    "memory.events": "oom 9\noom_kill {}\n",
}


@pytest.mark.parametrize(
    ("groups", "mounts", "root", "folder", "file"),
    [
        ("8:pids:/\n4:cpu,memory:/psched.service\n0::/\n", V1, "/", "psched.service", "memory.oom_control"),
        ("0::/system.slice/psched.service\n", V2, "/", "system.slice/psched.service", "memory.events"),
        ("0::/docker/1234/worker\n", V2, "/docker/1234", "worker", "memory.events"),
        ("0::/docker/1234\n", V2, "/", ".", "memory.events"),
    ],
)
def test_kills_are_counted_by_both_kinds_of_control_groups(
    tmp_path: Path, groups: str, mounts: str, root: str, folder: str, file: str
) -> None:
    counter = tmp_path / "groups" / folder / file
    counter.parent.mkdir(parents=True)
    (tmp_path / "cgroup").write_text(groups)
    (tmp_path / "mountinfo").write_text(mounts.format(root=root, top=tmp_path / "groups"))
    counter.write_text(WORDS[file].format(3))
    assert find_oom_counter(tmp_path) == counter
    kills = OomKills(tmp_path)
    assert not kills.take(), "what was killed before is not ours"
    counter.write_text(WORDS[file].format(5))
    assert [kills.take() for _ in range(3)] == [True, True, False], "each answers for one death"


def test_a_kill_that_no_death_accounts_for_is_forgotten(tmp_path: Path) -> None:
    counter = tmp_path / "groups/memory.events"
    counter.parent.mkdir()
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "mountinfo").write_text(V2.format(root="/", top=counter.parent))
    counter.write_text("oom_kill 0\n")
    kills = OomKills(tmp_path)
    counter.write_text("oom_kill 1\n")
    kills.look(100.0)
    kills.look(101.0)
    assert kills.take(), "its process may be about to die"
    counter.write_text("oom_kill 2\n")
    for now in (110.0, 120.0):
        kills.look(now)
    assert not kills.take()


@pytest.mark.parametrize("groups", ["", "0::/\n", "4:memory:/\n"])
def test_where_nothing_is_counted_no_death_is_the_kernel_s(tmp_path: Path, groups: str) -> None:
    (tmp_path / "cgroup").write_text(groups)
    (tmp_path / "mountinfo").write_text(V2.format(root="/", top=tmp_path / "nowhere"))
    assert not OomKills(tmp_path).take()
    assert not OomKills(tmp_path / "absent").take()


@pytest.fixture
def narrow() -> Iterator[Callable[[], None]]:
    """A function that puts the calling process, and all processes that it starts, into a control group with 300 MB."""
    counter = find_oom_counter(Path("/proc/self"))
    if counter is None or os.geteuid() != 0 or counter.name != "memory.oom_control":
        not_run("only root can make a control group, and this test makes one of version 1")
    group = counter.parent / f"psched-test-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(300 * 2**20))
    yield lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None

    def removed() -> bool:
        try:
            group.rmdir()
        except OSError:  # the kernel has not buried the last of its processes yet
            return False
        return True

    wait_for(removed)


def test_an_out_of_memory_kill_is_logged_and_the_task_backs_off(
    narrow: Callable[[], None], make_daemon: Callable[..., Daemon]
) -> None:
    daemon = make_daemon(retry_wait=5)  # the longest that a crashed task waits
    with (daemon.folder / "app.py").open("a") as application:
        application.write(EATS)
    daemon.start(preexec_fn=narrow)
    daemon.add("s1", "eat")
    end = "was killed by the kernel for lack of memory"
    daemon.wait_for_log(f"{end} while running schedules:s1; replacing it", 2)
    first, second = daemon.traces("began")[:2]
    assert second["at"] - first["at"] > 1
    with daemon.schedules() as schedules:
        daemon.wait_for(lambda: getattr(schedules.store.get("s1"), "last_error", None) == worker_died(end))
        schedules["s1"].delete()
    daemon.stop()


def test_another_kill_is_not_taken_for_one_by_the_kernel(daemon: Daemon) -> None:
    daemon.add("s1", "wait")
    daemon.wait_for_trace("began")
    daemon.worker().kill()
    daemon.wait_for_log("was killed by SIGKILL while running schedules:s1; replacing it")
    with daemon.schedules() as schedules:
        killed = worker_died("was killed by SIGKILL")
        daemon.wait_for(lambda: getattr(schedules.store.get("s1"), "last_error", None) == killed)
    daemon.go("s1")
    daemon.stop()
