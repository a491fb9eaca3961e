"""The metrics of a node: their values, in a format that Prometheus accepts, with a bounded number of series."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from wsgiref.simple_server import make_server

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

from faultlab.prerequisites import find
from psched.clock import monotonic
from psched.exporter import families
from psched.exporter.database import MOST_OVERDUE, MOST_TYPES, SectionFacts, SectionReader, section_readers
from psched.exporter.families import NodeCollector, registry_of
from psched.exporter.server import MetricsApplication, WSGIServer, _QuietHandler
from psched.exporter.text_file import write_text_file
from psched.insight import Insight
from psched.metrics.counter_file import CounterFile
from psched.metrics.event_counters import ChildCounter, MasterCounter
from psched.metrics.health import node_text
from psched.store.counts import Counted, TypeCounts
from psched.telemetry import emit

ALERTS = Path(__file__).parents[2] / "contrib/prometheus"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "counters"


@pytest.fixture
def master(path: Path) -> Iterator[MasterCounter]:
    counter = MasterCounter(CounterFile.create(path, is_upgrade=False), node_text("1.2", "2026a", 10))
    yield counter
    counter.close()


def child(master: MasterCounter, name: str) -> ChildCounter:
    block = master.block(name)
    assert block is not None
    return ChildCounter(block)


def count(counter: ChildCounter, section: str, type: str, outcome: str = "finished", seconds: float = 0.3) -> None:
    task = SimpleNamespace(type=type, outcome=outcome, duration=seconds, waited=2 * seconds)
    counter.settled("settle", {"section": section, "tasks": [task], "error": None, "seconds": 0.003})


def facts(types: int = 1, overdue: int = 1) -> SectionFacts:
    none = Counted(0)
    counts = {state: Counted(7) for state in ("total", "due", "running", "failing", "paused", "waiting", "finished")}
    waiting = [TypeCounts(f"type {number}", none, none, none, 30.0 + number) for number in range(types)]
    return SectionFacts(counts, waiting, {f"key {number}": 90.0 for number in range(overdue)}, -0.25)


def text(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


def samples(collector: NodeCollector) -> dict[str, float]:
    lines = text(registry_of(collector)).splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_what_children_count_is_what_prometheus_gets(master: MasterCounter, path: Path) -> None:
    for name in ("worker 1", "worker 2"):
        count(child(master, name), "queue", "mail")
    count(child(master, "worker 1"), "queue", "mail", "failed", seconds=30)
    count(child(master, "worker 1"), "schedules", "backup")
    found = samples(NodeCollector(path, []))
    assert found['psched_runs_total{outcome="finished",section="queue",type="mail"}'] == 2
    assert found['psched_runs_total{outcome="failed",section="queue",type="mail"}'] == 1
    assert found['psched_runs_total{outcome="failed",section="schedules",type="backup"}'] == 0
    duration = {
        le: found[f'psched_run_duration_seconds_bucket{{le="{le}",section="queue",type="mail"}}']
        for le in ("0.1", "1.0", "20.0", "100.0", "+Inf")
    }
    assert duration == {"0.1": 0, "1.0": 2, "20.0": 2, "100.0": 3, "+Inf": 3}
    assert found['psched_run_duration_seconds_sum{section="queue",type="mail"}'] == pytest.approx(30.6)
    assert found['psched_task_wait_seconds_count{type="mail"}'] == 3
    assert found['psched_run_lateness_seconds_sum{type="backup"}'] == pytest.approx(0.6)
    assert found['psched_store_seconds_bucket{le="0.005",operation="settle",section="queue"}'] == 3
    assert found['psched_node_info{tzdata="2026a",version="1.2"}'] == 1


def test_children_are_shown_by_state(master: MasterCounter, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = {name: master.block(name) for name in ("absent", "starting", "idle", "busy")}
    for number, name in enumerate(["starting", "idle", "busy"]):
        emit("fork", name=name, pid=100_000 + number)
    for name in ("idle", "busy"):
        (block := blocks[name]) and block.beat(is_ready=True, running=2 * (name == "busy"))
    found = samples(NodeCollector(path, []))
    shown = {state: found[f'psched_children{{state="{state}"}}'] for state in ("absent", "starting", "idle", "busy")}
    assert shown == dict.fromkeys(shown, 1)
    assert found["psched_running"] == 2
    collector = NodeCollector(path, [])
    assert (collector.health().is_healthy, collector.health().is_ready) == (True, False)
    later = families.monotonic() + 11
    monkeypatch.setattr("psched.metrics.health.monotonic", lambda: later)
    assert samples(collector)['psched_children{state="frozen"}'] == 3
    assert not collector.health().is_healthy


def test_without_a_daemon_it_is_down(path: Path) -> None:
    collector = NodeCollector(path, [])
    assert samples(collector)["psched_daemon_up"] == 0
    assert "No such file" in collector.health().why_not()


def test_a_database_that_never_answers_is_down(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "DATABASE_LIMIT", 0.05)
    answer = threading.Event()
    asked: list[int] = []

    def ask() -> SectionFacts:
        asked.append(1)
        answer.wait()
        return facts()

    collector = NodeCollector(None, [SectionReader("queue", ask), SectionReader("schedules", facts)])
    up = 'psched_database_up{section="queue"}'
    for _ in range(3):
        found = samples(collector)
        assert (found[up], found['psched_database_up{section="schedules"}']) == (0, 1)
    assert len(asked) == 1, "a database that hangs is not asked again and again"
    monkeypatch.setattr(families, "DATABASE_LIMIT", 30)
    answer.set()
    assert samples(collector)[up] == 1


def test_a_database_that_refuses_is_down(path: Path) -> None:
    def ask() -> SectionFacts:
        raise RuntimeError("no")

    assert samples(NodeCollector(None, [SectionReader("queue", ask)])) == {'psched_database_up{section="queue"}': 0}


def full(master: MasterCounter, path: Path) -> NodeCollector:
    """Return a collector with the largest possible number of series."""
    outcomes = ("finished", "retried", "released", "failed", "cancelled", "lost")
    for number in range(70):
        counter = child(master, f"worker {number}")
        counter.polled("poll", {"section": "queue", "seconds": 0.1})
        counter.polled("poll", {"section": "schedules", "seconds": 0.1})
        counter.heartbeat("heartbeat", {"is_ready": True, "running": 1})
        emit("fork", name=f"worker {number}", pid=100_000 + number)
        for section in ("queue", "schedules"):
            for each in range(number, number + 2):
                for outcome in outcomes:
                    count(counter, section, f"type {each}", outcome)
    most = facts(MOST_TYPES, MOST_OVERDUE)
    return NodeCollector(path, [SectionReader(name, lambda: most) for name in ("queue", "schedules")])


def test_there_are_no_more_than_two_thousand_series(master: MasterCounter, path: Path) -> None:
    found = samples(full(master, path))
    assert len(found) <= 2000
    types = {line.partition('type="')[2].partition('"')[0] for line in found if line.startswith("psched_runs_total")}
    assert "other" in types
    assert len(types) <= 65
    assert sum(value for line, value in found.items() if line.startswith("psched_runs_total")) == 70 * 2 * 2 * 6


@pytest.mark.needs("promtool")
def test_promtool_accepts_the_metrics(master: MasterCounter, path: Path) -> None:
    metrics = text(registry_of(full(master, path)))
    done = subprocess.run(
        [find("promtool"), "check", "metrics"], input=metrics, text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_promtool_accepts_the_alerts(arguments: tuple[str, ...]) -> None:
    done = subprocess.run([find("promtool"), *arguments], cwd=ALERTS, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_tested_and_uses_metrics_that_exist(master: MasterCounter, path: Path) -> None:
    rules, tests = (ALERTS / "alerts.yml").read_text(), (ALERTS / "alerts_test.yml").read_text()
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert [alert for alert in alerts if f"alertname: {alert}" not in tests] == []
    known = {line.partition("{")[0] for line in samples(full(master, path))}
    assert set(re.findall(r"psched_\w+", rules)) <= known


def test_the_text_file_is_whole_and_readable_by_all(master: MasterCounter, path: Path, tmp_path: Path) -> None:
    target = tmp_path / "psched.prom"
    for _ in range(2):
        write_text_file(NodeCollector(path, []), target)
    assert b"psched_daemon_up 1.0" in target.read_bytes()
    assert target.stat().st_mode & 0o777 == 0o644
    assert sorted(tmp_path.iterdir()) == [path, target]


def test_openmetrics_is_spoken_too(master: MasterCounter, path: Path) -> None:
    count(child(master, "worker 1"), "queue", "mail")
    found = openmetrics(registry_of(NodeCollector(path, []))).decode()
    assert found.endswith("# EOF\n")
    assert "# TYPE psched_runs counter" in found


def test_a_client_that_sends_nothing_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_QuietHandler, "timeout", 0.05)
    with make_server("127.0.0.1", 0, MetricsApplication(NodeCollector(None, [])), WSGIServer, _QuietHandler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with socket.create_connection(server.server_address[:2], timeout=30) as client:
            assert client.recv(1) == b""
        thread.join()
    assert capfd.readouterr().err == ""


def test_the_clock_offset_is_positive_if_this_host_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    late = SimpleNamespace(key="late", next_time=840, delay=10)
    schedules: Any = SimpleNamespace(
        now=lambda: 900.0, counts=lambda most: {}, types=lambda limit, most: [], overdue=lambda limit: [late]
    )
    [reader] = section_readers(cast("Insight", SimpleNamespace(schedules=schedules, tasks=None)))
    reader.begin()
    facts = reader.facts(monotonic() + 30)
    assert facts is not None
    assert (facts.clock_offset, facts.overdue) == (100, {"late": 50})


def test_the_database_is_asked_again_after_no_thread_could_start(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = SectionReader("queue", lambda: SectionFacts({}, [], {}, 0.5))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            reader.begin()
    reader.begin()
    facts = reader.facts(monotonic() + 30)
    assert facts is not None
    assert facts.clock_offset == 0.5
