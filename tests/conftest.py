"""Fixtures for all tests: database servers, and a check that a test leaves no process, thread or descriptor."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import tempfile
import uuid
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import pytest

from faultlab.clock import WallClock
from faultlab.forkserver_client import PARENT, SOCKET, ForkParent
from faultlab.laboratory import Lab
from faultlab.leaks import MARK, Holdings, kill_since, left_since
from faultlab.mariadb import MariaDB
from faultlab.postgresql import PostgreSQL
from faultlab.redis import Redis
from faultlab.servers import Server
from faultlab.unprivileged import chown_to_server_user
from faultlab.unsynced_sqlite import SQLITE, sync_nothing

pytest_plugins = [
    "faultlab.pytest_plugin", "tests.compiled_cache", "tests.forked_workers", "tests.trials", "tests.short_reports",
    "pytester",
]  # fmt: skip

_PATIENCE = 2.0
"""Seconds until processes and threads that a test has stopped must be gone."""

_TEMPLATES = "PSCHED_TEST_TEMPLATES"
"""The environment variable that names the folder with prepared data of the servers, for the pytest workers."""

_KINDS: dict[str, type[Server]] = {"mariadb": MariaDB, "postgresql": PostgreSQL}
_failed = pytest.StashKey[bool]()

# The duration of an example depends on the load of the machine only.
_untimed = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True)
# The suite draws the same examples every time; scripts/explore draws others, and more than a hundred times as many.
hypothesis.settings.register_profile("suite", _untimed, derandomize=True, max_examples=60)
hypothesis.settings.register_profile("long", _untimed, max_examples=10_000)
hypothesis.settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare what all pytest workers share. Restore the signals that the parent process ignores.

    nohup, for example, ignores a signal, and the processes of tests would inherit that.
    """
    os.environ[SQLITE] = "1"
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        shared = ExitStack()
        config.add_cleanup(shared.close)
        folder = shared.enter_context(tempfile.TemporaryDirectory(prefix="psched-templates-"))
        chown_to_server_user(Path(folder))
        os.environ[_TEMPLATES] = folder
        os.environ[PARENT] = str(shared.enter_context(ForkParent()).path)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Collect tests without the garbage collector, which takes a quarter of the collecting time.

    Afterwards it runs seldom.
    """
    gc.disable()
    yield
    gc.freeze()  # the tests stay: the collector need not scan them
    gc.set_threshold(20_000)  # of the 700 by default: 5 % less processor time (2026-11-24)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let each pytest worker begin with the tests marked `slow`, in fresh processes.

    Some of these tests fork often, and some mostly wait. xdist's `worksteal` gives each worker one slice of the list.
    The slow tests of a module stay in one slice.
    """
    workers: int = getattr(config, "workerinput", {}).get("workercount", 1)
    slow = [item for item in items if item.get_closest_marker("slow")]
    others = iter([item for item in items if not item.get_closest_marker("slow")])
    modules = [list(module) for _, module in itertools.groupby(slow, lambda item: item.path)]
    order: list[pytest.Item] = []
    for number in range(workers):
        first = list(itertools.chain(*modules[number::workers]))
        size = (len(items) - len(order)) // (workers - number)
        order += [*first, *itertools.islice(others, max(0, size - len(first)))]
    items[:] = [*order, *others]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember which tests failed. After a failed test the leak check only cleans up."""
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Database servers for the tests: shared ones, which start when a test first asks for them, and private ones."""
    sync_nothing()
    with pytest.MonkeyPatch.context() as patch, Lab(Path(os.environ[_TEMPLATES])) as lab:
        patch.setenv(MARK, uuid.uuid4().hex)
        patch.setenv(SOCKET, str(lab.fork_server()))
        yield lab


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest, lab: Lab) -> Iterator[None]:
    """Fail a test that leaves a process, a thread or an open descriptor behind, and kill the processes."""
    before = Holdings.now(lab)
    yield
    failed = request.node.stash.get(_failed, False)
    left = left_since(before, lab, 0 if failed else _PATIENCE)
    if left:
        kill_since(before, lab)
    if left and not failed:
        pytest.fail("the test left behind: " + "; ".join(left), pytrace=False)


@pytest.fixture(scope="session")
def mariadb(lab: Lab) -> Server:
    """The MariaDB that all tests share. Each test restores its state."""
    return lab.shared(MariaDB)


@pytest.fixture(scope="session")
def postgresql(lab: Lab) -> Server:
    """The PostgreSQL that all tests share. Each test restores its state."""
    return lab.shared(PostgreSQL)


@pytest.fixture(scope="session")
def redis(lab: Lab) -> Server:
    """The Redis that all tests share. Each test restores its state."""
    return lab.shared(Redis)


@pytest.fixture(params=list(_KINDS))
def server(request: pytest.FixtureRequest, lab: Lab) -> Server:
    """The shared database servers, one after another."""
    return lab.shared(_KINDS[request.param])


@pytest.fixture(params=list(_KINDS))
def own_server(request: pytest.FixtureRequest, lab: Lab) -> Iterator[Server]:
    """A private, running server of each kind, which the test may stop, kill, freeze and start again."""
    with lab.private(_KINDS[request.param]) as server:
        yield server


@pytest.fixture(params=["sqlite", *_KINDS])
def database(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path) -> Iterator[str]:
    """The URL of a new and empty database of each kind. SQLite's file does not exist yet."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'psched.db'}"
        return
    with lab.shared(_KINDS[request.param]).database() as url:
        yield url


@pytest.fixture
def wall_clock(lab: Lab) -> WallClock:
    """A wall clock for other processes. It shows the true time until the test sets it."""
    return lab.wall_clock()
