"""The file of counters: readers find what writers have counted, even after any of these processes has died."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from faultlab import prerequisites
from faultlab.small_disk import SmallDisk, can_mount
from psched import telemetry
from psched.child.heartbeat_and_control import ControlThread
from psched.child.main import role_of
from psched.config import Settings
from psched.histogram import BOUNDS, bucket
from psched.metrics import counter_file
from psched.metrics.counter_file import (
    COUNT,
    FIRST_BUCKETS,
    FIRST_SUM,
    SECOND_BUCKETS,
    SECOND_SUM,
    CounterBlock,
    CounterFile,
    CounterFileError,
    read_counters,
)
from psched.metrics.event_counters import MOST_TYPES, OTHER, RESTART, RUN, STORE, ChildCounter, MasterCounter
from psched.process.child_base import ChildBase
from psched.telemetry import emit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "psched.pid.metrics"


@pytest.fixture
def file(path: Path) -> Iterator[CounterFile]:
    file = CounterFile.create(path, is_upgrade=False)
    yield file
    file.close()


def settled(type: str = "mail", outcome: str = "finished", duration: float = 0.3, waited: float | None = 2.0) -> Any:
    return SimpleNamespace(type=type, outcome=outcome, duration=duration, waited=waited)


def count(counter: ChildCounter, *tasks: Any, error: str | None = None) -> None:
    fields = {"section": "queue", "tasks": tasks, "error": error, "seconds": None}
    counter.settled("settle", fields)


def child(file: CounterFile, name: str = "worker 1") -> ChildCounter:
    block = file.block(name)
    assert block is not None
    return ChildCounter(block)


def runs(path: Path) -> dict[tuple[str, ...], float]:
    return {label[1:]: numbers[COUNT] for label, numbers in read_counters(path).sums.items() if label[0] == RUN}


def in_process(act: Callable[[], None]) -> int:
    """Call `act` in a forked process, which SIGKILL then ends. Return its pid, when it has been reaped."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os.kill(os.getpid(), 9)
    assert os.waitpid(pid, 0)[1] == 9
    return pid


def test_the_masters_of_an_upgrade_never_take_the_same_block(
    file: CounterFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = CounterFile.create(path, is_upgrade=True)
    whole = CounterBlock.take
    taken: list[CounterBlock | None] = []

    def take_meanwhile(block: CounterBlock, text: str, master: int) -> None:
        monkeypatch.setattr(CounterBlock, "take", whole)
        taken.append(new.block("worker 1"))
        whole(block, text, master)

    monkeypatch.setattr(CounterBlock, "take", take_meanwhile)
    assert file.block("worker 2") is not None
    assert taken == [None]  # it is retried at the next fork
    assert new.block("worker 1") is not None
    assert sorted(each.name for each in read_counters(path).processes) == ["worker 1", "worker 2"]
    new.unmap()


def test_runs_are_counted_with_their_duration_and_wait(file: CounterFile, path: Path) -> None:
    count(child(file), settled(), settled(duration=30.0, waited=None))
    (numbers,) = read_counters(path).sums.values()
    assert numbers[COUNT] == 2
    assert numbers[FIRST_SUM] == pytest.approx(30.3)
    assert numbers[FIRST_BUCKETS + bucket(0.3)] == numbers[FIRST_BUCKETS + bucket(30)] == 1
    assert sum(numbers[FIRST_BUCKETS:SECOND_BUCKETS]) == 2
    assert numbers[SECOND_SUM] == 2.0
    assert sum(numbers[SECOND_BUCKETS : SECOND_BUCKETS + len(BOUNDS) + 1]) == 1


def test_the_sums_of_a_killed_child_are_kept_and_its_successor_adds_to_them(file: CounterFile, path: Path) -> None:
    assert file.block("worker 1")
    for _ in range(2):
        in_process(lambda: count(child(file), settled(), settled("report", "retried")))
    in_process(lambda: count(child(file), settled()))
    assert runs(path) == {("queue", "finished", "mail"): 3, ("queue", "retried", "report"): 2}


def test_a_run_that_could_not_be_settled_is_lost(file: CounterFile, path: Path) -> None:
    count(child(file), settled(), error="no answer")
    assert runs(path) == {("queue", "lost", "mail"): 1}


def test_the_children_of_a_node_add_up(file: CounterFile, path: Path) -> None:
    count(child(file, "worker 1"), settled())
    count(child(file, "worker 2"), settled(), settled("report"))
    assert runs(path) == {("queue", "finished", "mail"): 2, ("queue", "finished", "report"): 1}


def test_types_beyond_a_bound_are_counted_together(file: CounterFile, path: Path) -> None:
    counter = child(file)
    for number in range(MOST_TYPES + 5):
        for outcome in ("finished", "retried", "released", "failed", "cancelled"):
            count(counter, settled(f"type {number}", outcome))
            count(counter, settled(f"type {number}"), error="lost")
    found = runs(path)
    assert found["queue", "finished", "type 63"] == 1
    assert found["queue", "finished", OTHER] == 5
    assert found["queue", "cancelled", OTHER] == 5
    assert found["queue", "lost", OTHER] == 25
    assert len(found) == 6 * (MOST_TYPES + 1)


def test_a_type_with_any_characters_is_counted(file: CounterFile, path: Path) -> None:
    odd = ["tab\tbed", "nul\0", "", "é" * 300, "\udcff", "line\nbreak"]
    for each in odd:
        count(child(file), settled(each))
    assert sum(runs(path).values()) == len(odd)


class Role(ChildBase):
    names: Sequence[str] = ()

    def running(self) -> Sequence[str]:
        return self.names


def test_each_heartbeat_stores_the_number_of_runs_in_progress(
    file: CounterFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role, titles = Role(), list[str]()
    monkeypatch.setattr(telemetry, "_listeners", {})
    monkeypatch.setattr("psched.child.main.load", lambda application: None)
    monkeypatch.setattr("psched.child.main.HandlerChild", lambda *arguments: role)
    monkeypatch.setattr("psched.child.heartbeat_and_control.KillTimer", lambda _: SimpleNamespace(restart=lambda: None))
    monkeypatch.setattr("psched.child.heartbeat_and_control.setproctitle", titles.append)
    spec: Any = SimpleNamespace(counters=file.block("worker 1"), slot=1, application=None, dispatch=None)
    pipe: Any = SimpleNamespace(send=lambda *message: None, beat=lambda now: None)
    nothing: Any = None
    control = ControlThread("worker 1", pipe, nothing, Settings(environment="test"), nothing)
    role.names = ["mail"]
    control.started(role_of(spec, pipe))
    found = [read_counters(path).processes[0].running]
    for names in (["mail", "re\nport"], []):
        role.names = names
        control._beat()
        found.append(read_counters(path).processes[0].running)
    assert found == [1, 2, 0]
    assert titles == [f"psched: worker 1 {state}" for state in ("running mail", "running mail, re\\x0aport", "idle")]


def test_calls_of_the_database_are_counted(file: CounterFile, path: Path) -> None:
    counter = child(file)
    counter.polled("poll", {"section": "queue", "seconds": 0.004})
    counter.polled("poll", {"section": "queue", "seconds": None})
    counter.settled("settle", {"section": "queue", "tasks": (settled(),), "error": None, "seconds": 0.2})
    sums = read_counters(path).sums
    assert (sums[STORE, "queue", "poll"][COUNT], sums[STORE, "queue", "poll"][FIRST_SUM]) == (1, 0.004)
    assert sums[STORE, "queue", "settle"][FIRST_BUCKETS + bucket(0.2)] == 1


@pytest.fixture
def master(file: CounterFile) -> Iterator[MasterCounter]:
    counter = MasterCounter(file, "1.0 2025b")
    yield counter
    counter.close()


def test_the_master_tells_what_its_children_do_and_how_they_ended(master: MasterCounter, path: Path) -> None:
    block = master.block("worker 1")
    assert block is not None
    emit("fork", name="worker 1", pid=4711)
    emit("fork", name="dry run", pid=4712)
    block.beat(is_ready=True, running=1)
    me, worker = read_counters(path).living
    assert (me.name, me.text, me.master) == ("master", "1.0 2025b", os.getpid())
    assert (worker.name, worker.pid, worker.running, worker.is_ready) == ("worker 1", 4711, 1, True)
    assert worker.heartbeat >= worker.forked_at > 0
    emit("child_exit", name="dry run", pid=4712, code=0, reason="", cause="left")
    emit("child_exit", name="worker 1", pid=4711, code=-9, reason="", cause="SIGKILL")
    assert [each.pid for each in read_counters(path).living] == [0, 0]
    assert [each.running for each in read_counters(path).living] == [0, 0]
    counted = {label: numbers[COUNT] for label, numbers in read_counters(path).sums.items()}
    assert counted == {(RESTART, "SIGKILL"): 1}


def test_a_new_master_starts_from_nothing(file: CounterFile, path: Path) -> None:
    count(child(file), settled())
    anew = CounterFile.create(path, is_upgrade=False)
    assert runs(path) == {}
    count(child(anew), settled())
    assert runs(path) == {("queue", "finished", "mail"): 1}
    assert file.block("worker 2") is None  # the old master must not write into the new one's file
    anew.close()
    assert not path.exists()


def test_an_upgraded_master_counts_beside_the_old_one_and_later_goes_on_with_its_blocks(path: Path) -> None:
    ours = CounterFile.create(path, is_upgrade=False)
    count(child(ours), settled())

    def upgrade() -> None:
        theirs = CounterFile.create(path, is_upgrade=True)
        count(child(theirs), settled(), settled())

    in_process(upgrade)
    count(child(ours), settled())
    assert runs(path) == {("queue", "finished", "mail"): 4}
    size = path.stat().st_size
    for _ in range(3):
        in_process(upgrade)
    assert runs(path) == {("queue", "finished", "mail"): 10}
    assert path.stat().st_size == size
    ours.close()
    assert not path.exists()


def test_the_old_master_leaves_the_file_to_the_new_one(path: Path) -> None:
    ours = CounterFile.create(path, is_upgrade=False)
    count(child(ours), settled())
    code = (
        "import sys; from pathlib import Path; from psched.metrics.counter_file import CounterFile; "
        "file = CounterFile.create(Path(sys.argv[1]), True); file.block('worker 1');"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        ours.close()
        assert runs(path) == {("queue", "finished", "mail"): 1}
        other.communicate()


def test_a_full_disk_ends_no_process_that_counts_or_reads() -> None:
    """A write to a mapped page for which the disk has no space ends the process by SIGBUS."""
    if not can_mount():
        prerequisites.not_run("only root on Linux can mount a small disk")
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) < (5, 14):
        prerequisites.not_run("this Linux has no MADV_POPULATE_WRITE")
    with SmallDisk(1) as disk:
        file = CounterFile.create(disk.path / "metrics", is_upgrade=False)
        block = file.block("worker 1")
        assert block is not None
        disk.fill()
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                counted = [block.counter("kind", str(number)) for number in range(100)]
                is_refused = file.block("worker 2") is None
                read = read_counters(file.path)
                os._exit(0 if counted[-1] is None and is_refused and len(read.processes) == 1 else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        disk.free()
        assert block.counter("another kind") is not None
        assert file.block("worker 2") is not None
        file.close()


def test_another_file_is_not_read(path: Path) -> None:
    for text in (b"", b"something else", counter_file._LAYOUT):
        path.write_bytes(text)
        with pytest.raises(CounterFileError, match="does not contain counters of this version"):
            read_counters(path)
    path.unlink()
    with pytest.raises(CounterFileError, match="No such file or directory; is the daemon running"):
        read_counters(path)


def test_other_users_cannot_read_it(file: CounterFile, path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(path.parent.iterdir()) == [path]
