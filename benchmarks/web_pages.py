"""Measures the web pages with 100,000 schedules, a million tasks and a million runs.

The results: how long each page takes and how many statements it sends, the size of a first load, the costs of open
tabs, how fast a daemon drains a backlog beside open tabs, and how long a scrape of the exporter takes.
"""

from __future__ import annotations

import gzip
import http.client
import math
import random
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from urllib.parse import urlsplit

import psutil
import uvicorn
from prometheus_client import generate_latest

from benchmarks import insight_questions
from benchmarks.databases import Place
from benchmarks.process_usage import processor_time, tree_of
from benchmarks.statement_counter import counting
from benchmarks.throughput import run_backlog
from benchmarks.worker import BenchmarkWorker
from benchmarks.workload import Contender, Scale, Workload
from psched.config import load
from psched.exporter.database import section_readers
from psched.exporter.families import NodeCollector, registry_of
from psched.insight import open_insight
from psched.schedules.collection import ScheduleCollection
from psched.store import LeaseStore
from psched.store.run_stats import RunKind, RunSums
from psched.web import app
from psched.web.pages import PAGES
from psched.web.shared_state import SharedState
from psched.web.status_poller import INTERVAL

_TIMES, _SECONDS = 100, 4.0
"""How often each page is requested at most, and for how many seconds; but at least `_LEAST` times."""
_LEAST = 25
_COMPUTING = "The answer is being computed"
"""The text of a page whose answer takes longer than the page waits. Such an answer is then kept for minutes."""
_TABS = 20
_WATCHED = 30.0
"""Seconds for which the costs of open tabs are measured."""
_SETTLING = 8.0
_PAUSE = 1.0
"""Seconds from one change that open tabs show to the next."""
_BACKLOG = 20_000
"""How many tasks are drained, in another database on the same server."""
_DRAINS = ((), ("tabs",), ("tabs",), ())
"""For each drain, the programs that run beside it."""

Path = Callable[[], str]
"""Returns the address of a page. If the page has a parameter, each call returns another address."""


def pages(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return the results of all measurements of the pages."""
    worker = BenchmarkWorker(place)
    insight_questions.fill(place, worker, scale)
    _fill_statistics(worker, place)
    return {
        **_answers(worker, scale),
        **_statements(place, worker, scale),
        **_scrape(worker, scale),
        **_tabs(place, worker, scale),
        **_drain(place, worker, scale),
    }


def _answers(worker: BenchmarkWorker, scale: Scale) -> Mapping[str, float]:
    """Return percentiles of the time of each page, in milliseconds, without kept answers.

    Also return the size of a first load.
    """
    found: dict[str, float] = {}
    with _served(worker) as (shared, address):
        connection = http.client.HTTPConnection(address, timeout=60)
        for name, path in _paths(scale.count(insight_questions.SCHEDULES)).items():
            # The first request also connects, and compiles the statements of the page.
            is_computed = _COMPUTING in _fetch(connection, path())[0]
            begun = time.perf_counter()
            while _COMPUTING in _fetch(connection, path())[0]:
                time.sleep(0.1)
            if is_computed:
                found[f"{name} computed in s"] = time.perf_counter() - begun

            def ask(path: Path = path, kept: bool = is_computed) -> float:
                if not kept:
                    shared.forget_answers()
                begun = time.perf_counter()
                _fetch(connection, path())
                return (time.perf_counter() - begun) * 1000

            found |= _percentiles(name, ask, scale)
        found["first load kB"], found["first load requests"] = _first_load(connection)
        connection.close()
    return found


def _percentiles(name: str, ask: Callable[[], float], scale: Scale) -> Mapping[str, float]:
    """Return the median and the 99th percentile of the values of `ask` (with fewer than 100 values, the largest)."""
    spans: list[float] = []
    until = time.monotonic() + scale.seconds(_SECONDS)
    while len(spans) < scale.count(_TIMES) and (time.monotonic() < until or len(spans) < scale.count(_LEAST)):
        spans.append(ask())
    spans.sort()
    return {f"{name} p50 ms": spans[len(spans) // 2], f"{name} p99 ms": spans[math.ceil(len(spans) * 0.99) - 1]}


def _statements(place: Place, worker: BenchmarkWorker, scale: Scale) -> Mapping[str, float]:
    """Return how many statements each page sends without kept answers, except the statements of the status poller."""
    found: dict[str, float] = {}
    with counting(place) as asked, _served(worker) as (shared, address):
        connection = http.client.HTTPConnection(address, timeout=60)
        _fetch(connection, "/")
        shared.status_poller.end()  # from now on, the pages use the last status
        time.sleep(2 * INTERVAL)
        for name, path in _paths(scale.count(insight_questions.SCHEDULES)).items():
            for _ in range(2):  # the first request may open a connection
                shared.forget_answers()
                before = asked()
                while _COMPUTING in _fetch(connection, path())[0]:
                    time.sleep(0.1)
            found[f"{name} statements"] = asked() - before
        connection.close()
    return found


def _scrape(worker: BenchmarkWorker, scale: Scale) -> Mapping[str, float]:
    """Return how long a scrape of the exporter takes, with only the metrics of the database."""
    with open_insight(load(worker.config)) as insight:
        registry = registry_of(NodeCollector(None, section_readers(insight)))
        generate_latest(registry)  # connects, and compiles the statements of a scrape

        def ask() -> float:
            begun = time.perf_counter()
            generate_latest(registry)
            return (time.perf_counter() - begun) * 1000

        return _percentiles("scrape", ask, scale)


def _drain(place: Place, worker: BenchmarkWorker, scale: Scale) -> Mapping[str, float]:
    """Return how fast a daemon drains a backlog alone, and beside open tabs whose pages change each second."""
    rates: dict[tuple[str, ...], list[float]] = {beside: [] for beside in _DRAINS}
    for number, beside in enumerate(_DRAINS):
        folder = place.folder / f"drain-{number}"
        folder.mkdir(exist_ok=True)
        assert place.server is not None
        with ExitStack() as stack:
            url = stack.enter_context(place.server.database())
            if beside:
                _, address = stack.enter_context(_process(worker))
                _open_tabs(address)
                stack.enter_context(_changes(worker))
            drained = run_backlog("returns", _BACKLOG, Place(place.store, url, folder, place.server), scale)
            rates[beside].append(drained["tasks/s"])
    alone, with_tabs = (sum(rates[beside]) / len(rates[beside]) for beside in ((), ("tabs",)))
    return {
        "drain alone tasks/s": alone,
        "drain beside tabs tasks/s": with_tabs,
        "drain beside tabs share": with_tabs / alone,
    }


@contextmanager
def _changes(worker: BenchmarkWorker) -> Iterator[None]:
    """Change a number that the tabs show, once a second, until the context ends."""
    ended = threading.Event()

    def change() -> None:
        with worker.schedules() as schedules:
            while not ended.wait(_PAUSE):
                _change(schedules)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _tabs(place: Place, worker: BenchmarkWorker, scale: Scale) -> Mapping[str, float]:
    """Return the costs of open tabs with the page Now, while a number on this page changes each second."""
    with counting(place) as asked, _process(worker) as (process, address), worker.schedules() as schedules:
        _open_tabs(address)
        time.sleep(scale.seconds(_SETTLING))
        statements, changes, begun = asked(), 0, time.monotonic()
        used = processor_time(tree_of([process]))
        while time.monotonic() < begun + scale.seconds(_WATCHED):
            _change(schedules)
            changes += 1
            time.sleep(_PAUSE)
        span = time.monotonic() - begun
        used = processor_time(tree_of([process])) - used
        statements = asked() - statements
    alone = _statements_of_changes(place, worker, changes)
    return {f"{_TABS} tabs CPU %": used / span * 100, f"{_TABS} tabs statements/s": (statements - alone) / span}


def _change(schedules: ScheduleCollection) -> None:
    """Change the number of paused schedules. (A number of tasks would stay at 1,000, up to which tasks are counted.)"""
    schedule = schedules["model"]
    schedule.resume() if schedule.metadata().paused else schedule.pause()


def _statements_of_changes(place: Place, worker: BenchmarkWorker, count: int) -> int:
    """Return how many statements `count` changes send, so that they can be subtracted from those of the pages."""
    with counting(place) as asked, worker.schedules() as schedules:
        _change(schedules)
        before = asked()
        for _ in range(count):
            _change(schedules)
        return asked() - before


def _open_tabs(address: str) -> None:
    for _ in range(_TABS):
        threading.Thread(target=_tab, args=(address,), daemon=True).start()


def _tab(address: str) -> None:
    """Do what a browser does: fetch the page, read the stream of changes, and fetch the page again at each change."""
    pages, changes = http.client.HTTPConnection(address, timeout=60), http.client.HTTPConnection(address, timeout=600)
    with suppress(OSError, http.client.HTTPException):  # the server has ended
        _fetch(pages, "/")
        changes.request("GET", "/changes")
        stream = changes.getresponse()
        while line := stream.readline():
            if line.startswith(b"data: "):
                _fetch(pages, "/")


def _fetch(connection: http.client.HTTPConnection, path: str) -> tuple[str, int]:
    """Return the text of a page, and the number of bytes that were transferred for its body."""
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != http.HTTPStatus.OK:
        raise RuntimeError(f"{path}: {answer.status}: {body[:200]!r}")
    return (gzip.decompress(body) if answer.headers["Content-Encoding"] else body).decode(), len(body)


def _first_load(connection: http.client.HTTPConnection) -> tuple[float, int]:
    """Return the kB and the number of requests of a browser that opens the page Now with an empty cache."""
    text, size = _fetch(connection, "/")
    files = set(re.findall(r'(?:href|src)="(/static/[^"]*)"', text))
    # The requests: the page, its files, and the stream /changes.
    return (size + sum(_fetch(connection, path)[1] for path in files)) / 1000, 1 + len(files) + 1


def _paths(count: int) -> Mapping[str, Path]:
    """Return a name for each kind of page, with a function that returns its address. `count`: the stored schedules."""
    chance = random.Random(1)

    def key() -> str:
        return f"stored-{chance.randint(1, count)}"

    def type_() -> str:
        return f"type{chance.randrange(20)}"

    found: dict[str, Path] = {
        "Now": lambda: "/",
        "Schedules": lambda: "/schedules",
        "Schedules of a type": lambda: f"/schedules?type={type_()}",
        "Schedules with a prefix": lambda: f"/schedules?prefix={key()[:10]}",
        "Schedules overdue": lambda: "/schedules?state=overdue",
        "Schedule": lambda: f"/schedule?key={key()}",
        "Older history": lambda: f"/schedule?key={key()}&until={round(time.time()) - 86400}",
        "Queue": lambda: "/queue",
        "Tasks": lambda: f"/tasks?after={key()}",
        "Tasks waiting": lambda: f"/tasks?status=waiting&type={type_()}",
        "Tasks of a user": lambda: f"/tasks?status=waiting&user=user{chance.randrange(500) * 2 + 1}",
        "Tasks failed": lambda: f"/tasks?status=failed&type={type_()}",
        "Task": lambda: f"/task?key={key()}",
    }
    # without a range, the page answers with a redirect
    until = datetime.now().astimezone()
    since = until - timedelta(days=7)
    proof = f"/proof?from={since:%Y-%m-%dT%H:%M}&to={until:%Y-%m-%dT%H:%M}"
    found |= {"Proof": lambda: proof, "Proof export": lambda: f"{proof}&format=json&records=1"}
    found |= {path: lambda path=path: path for path in PAGES if path not in (*_NAMED, *_NEEDING)}
    return found


_NAMED = ("/", "/schedules", "/schedule", "/queue", "/tasks", "/task", "/proof")
_NEEDING = ("/tasks/bulk", "/schedule/edit")
"""Pages that only visitors who may change something can see."""


@contextmanager
def _served(worker: BenchmarkWorker) -> Iterator[tuple[SharedState, str]]:
    """Serve the pages in this process. Yield their shared state and their address."""
    made = app(load(worker.config))
    server = uvicorn.Server(uvicorn.Config(made, port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield made.state.shared, f"127.0.0.1:{port}"
    finally:
        server.should_exit = True
        made.state.shared.close()
        thread.join()


@contextmanager
def _process(worker: BenchmarkWorker) -> Iterator[tuple[psutil.Process, str]]:
    """Serve the pages in another process. Yield this process and the address."""
    command = [*worker.command, "web", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield psutil.Process(process.pid), urlsplit(process.stdout.readline().split()[-1]).netloc
        finally:
            process.terminate()


def _fill_statistics(worker: BenchmarkWorker, place: Place) -> None:
    """Store statistics of four nodes that have run each type for two hours."""
    marker = place.folder / "counted"
    if marker.exists():
        return
    with worker.schedules() as schedules, worker.queue() as queue:
        for store in (schedules.store, queue.store):
            for node in range(4):
                _fill_node(store, f"node{node}")
    marker.touch()


def _fill_node(store: LeaseStore, node: str) -> None:
    assert store.stats is not None
    sums = RunSums()
    for _ in range(100):
        sums.add_run(0.02, 0.003)
    now = int(store.now()) // 60 * 60
    kinds = (
        RunKind(now - minute * 60, f"type{number}", outcome)
        for minute in range(120)
        for number in range(20)
        for outcome in ("finished", "retried")
    )
    counted: Sequence[tuple[RunKind, Sequence[int]]] = [(kind, sums) for kind in kinds]
    store.stats.add(node, counted, 30 * 86400.0)


WORKLOADS = (
    Workload(
        "web",
        "how long a web page takes with 100,000 schedules, 1,000,000 tasks and 1,000,000 runs, and what open tabs cost",
        (Contender("psched", pages, ("postgresql", "mariadb"), once=True),),
    ),
)
