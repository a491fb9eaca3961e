"""psched.asgi.lifespan in one process, with the test clients of the frameworks. The frameworks read annotations."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from litestar import Litestar, get
from litestar.di import NamedDependency, Provide
from litestar.testing import TestClient as LitestarClient

import psched
import psched.asgi
from faultlab.laboratory import Lab
from faultlab.redis import Redis
from psched.config import coerce
from psched.queue.queue import open_queue
from tests.daemon.harness import wait_for

Config = dict[str, Any]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """The configuration of a queue on SQLite that has its tables."""
    config: Config = {"type": "rdb", "url": f"sqlite:///{tmp_path}/psched.db", "queue": {}}
    create_tables(config)
    return config


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[psched.Scheduler]:
    """A scheduler on SQLite. Fails a test that leaves it running."""
    scheduler = psched.create_scheduler(f"sqlite:///{tmp_path}/scheduler.db", poll_interval=0.1)
    yield scheduler
    assert not is_running(scheduler)


def create_tables(config: Config) -> None:
    section = coerce(config, reader="queue").queue
    assert section is not None
    with open_queue(section, "test") as queue:
        queue.store.create_tables()


def is_running(scheduler: psched.Scheduler) -> bool:
    """Stop the scheduler if it is running. Return whether it was."""
    try:
        scheduler.bind("free", lambda data: None)
    except psched.ScheduleError:
        scheduler.stop()
        return True
    return False


def application(jobs: psched.asgi.Lifespan) -> FastAPI:
    app = FastAPI(lifespan=jobs)

    @app.post("/tasks/{key}")
    def submit(key: str, queue: Annotated[psched.Queue, Depends(jobs.queue)]) -> str:
        return queue.submit(key, "mail").key

    return app


def test_fastapi_runs_handlers_and_submits_to_the_queue(scheduler: psched.Scheduler, config: Config) -> None:
    ran = threading.Event()
    scheduler.bind("mail", lambda data: ran.set())
    with TestClient(application(psched.asgi.lifespan(scheduler, queue=config))) as client:
        assert client.post("/tasks/one").json() == "one"
        scheduler.push("mail")
        assert ran.wait(20)
    with psched.open_queue(config) as queue:
        assert queue["one"].exists()


def test_an_application_may_be_started_again(scheduler: psched.Scheduler, config: Config) -> None:
    app = application(psched.asgi.lifespan(scheduler, queue=config))
    for key in ("one", "two"):
        with TestClient(app) as client:
            assert client.post(f"/tasks/{key}").json() == key


def test_litestar_submits_to_the_queue(config: Config) -> None:
    jobs = psched.asgi.lifespan(queue=config)

    @get("/", dependencies={"queue": Provide(jobs.queue)}, sync_to_thread=True)
    def submit(queue: NamedDependency[psched.Queue]) -> str:
        return queue.submit("one", "mail").key

    with LitestarClient(Litestar([submit], lifespan=[jobs], logging_config=None)) as client:
        assert client.get("/").text == "one"


def test_the_queue_of_an_application_that_does_not_run_is_refused(config: Config) -> None:
    client = TestClient(application(psched.asgi.lifespan(queue=config)))
    with pytest.raises(psched.ScheduleError, match="not running; in tests, use `with TestClient"):
        client.post("/tasks/one")


def test_a_lifespan_without_a_queue_says_how_to_give_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        TestClient(application(psched.asgi.lifespan())) as client,
        pytest.raises(psched.ConfigError, match="no queue to submit to"),
    ):
        client.post("/tasks/one")


def test_functions_of_apps_run_in_the_scheduler_of_an_application_without_another_queue(
    scheduler: psched.Scheduler,
) -> None:
    tasks, ran = psched.App(), threading.Event()

    @scheduler.bind
    @tasks.task
    def mail(to: str) -> None:
        if to == "ada":
            ran.set()

    async def submit() -> None:
        async with psched.asgi.lifespan(scheduler)():
            await mail.asubmit(to="ada")
            assert await asyncio.to_thread(ran.wait, 20)

    asyncio.run(submit())


def test_functions_of_apps_submit_to_the_queue_while_the_application_runs(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = psched.App()

    @tasks.task
    def mail(to: str) -> None:
        pass

    async def submit() -> None:
        async with psched.asgi.lifespan(queue=config)():
            assert (await (await mail.asubmit(to="ada")).ametadata()).data == {"to": "ada"}

    asyncio.run(submit())
    with pytest.raises(psched.ConfigError, match="no queue to submit to"):
        mail.submit(to="grace")


def test_a_start_without_tables_is_refused_and_leaves_nothing_running(
    scheduler: psched.Scheduler, tmp_path: Path
) -> None:
    missing = {"type": "rdb", "url": f"sqlite:///{tmp_path}/missing.db", "queue": {}}
    app = application(psched.asgi.lifespan(scheduler, queue=missing))
    with pytest.raises(psched.ConfigError, match="missing.db"), TestClient(app):
        pass


def test_an_application_starts_without_its_database_and_submits_when_it_is_there(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    with lab.private(Redis) as server:
        config = {"type": "redis", "url": server.url(server.create_database()), "queue": {}}
        create_tables(config)
        server.kill()
        with TestClient(application(psched.asgi.lifespan(queue=config)), raise_server_exceptions=False) as client:
            assert "the next request tries again" in caplog.text
            assert client.post("/tasks/one").status_code == 500
            server.start()
            create_tables(config)
            assert client.post("/tasks/one").json() == "one"


def test_a_lifespan_is_entered_once_at_a_time(scheduler: psched.Scheduler, config: Config) -> None:
    jobs = psched.asgi.lifespan(scheduler, queue=config)

    async def enter_twice() -> None:
        async with jobs():
            with pytest.raises(psched.ScheduleError, match="call psched.asgi.lifespan for each application"):
                async with jobs():
                    pass
            assert isinstance(await jobs.queue(), psched.Queue)

    asyncio.run(enter_twice())


class SlowScheduler:
    """A scheduler whose start waits, as if for a database, until the test sets `answer`."""

    def __init__(self) -> None:
        self.starting = threading.Event()
        self.answer = threading.Event()
        self.running = False

    def start(self) -> None:
        self.starting.set()
        assert self.answer.wait(20)
        self.running = True

    def stop(self, timeout: float | None = None) -> bool:
        self.running = False
        return True


def test_the_event_loop_runs_while_a_start_waits_and_a_cancelled_start_is_undone(config: Config) -> None:
    slow: Any = SlowScheduler()

    async def cancel_while_starting() -> None:
        async def enter() -> None:
            async with psched.asgi.lifespan(slow, queue=config)():
                pytest.fail("entered")

        entering = asyncio.create_task(enter())
        await asyncio.to_thread(slow.starting.wait, 20)
        entering.cancel()
        asyncio.get_running_loop().call_later(0.01, slow.answer.set)
        with pytest.raises(asyncio.CancelledError):
            await entering

    asyncio.run(cancel_while_starting())
    assert slow.starting.is_set()
    assert not slow.running


def test_a_handler_that_outlasts_the_stop_timeout_is_left_behind(
    scheduler: psched.Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    begun, end = threading.Event(), threading.Event()

    @scheduler.bind("slow")
    def slow(data: object) -> None:
        begun.set()
        assert end.wait(20)

    scheduler.push("slow")
    with caplog.at_level(logging.WARNING), TestClient(application(psched.asgi.lifespan(scheduler, stop_timeout=0.1))):
        assert begun.wait(20)
    assert "a handler is still running after stop_timeout=0.1 s" in caplog.text
    end.set()
    wait_for(scheduler.stop)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "5"])
def test_a_stop_timeout_that_is_no_number_of_seconds_is_refused(timeout: Any) -> None:
    with pytest.raises(ValueError, match="stop_timeout"):
        psched.asgi.lifespan(stop_timeout=timeout)


def test_apush_pushes_from_a_coroutine(scheduler: psched.Scheduler) -> None:
    ran: list[object] = []
    scheduler.bind("mail", ran.append)

    async def push() -> str:
        return await scheduler.apush("mail", data={"to": "ada"}, retry=True, retry_timeout=5)

    with scheduler:
        assert asyncio.run(push()).startswith("push:")
        wait_for(lambda: ran)
    assert ran == [{"to": "ada"}]
