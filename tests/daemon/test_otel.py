"""Traces of real daemons, as an OTLP receiver gets them: each run is linked to its submit, and no span is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from faultlab.laboratory import Lab
from faultlab.redis import Redis
from psched.config import Settings
from psched.contrib import otel
from psched.queue.queue import Queue, open_queue
from psched.store import holder_name
from tests.daemon.harness import Daemon
from tests.daemon.otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver
from tests.stores.databases import KINDS

APPLICATION = """
import os, time
import psched
from opentelemetry import trace
from psched.application import App
from app_traces import trace as record

app = App()
tracer = trace.get_tracer("team")

@app.task("quick")
def quick(task):
    with tracer.start_as_current_span("work"):
        record("ran", task, trace_id=task.trace_id)

@app.task("unsteady", retry_wait=0.01)
async def unsteady(task):
    if task.attempts == 1:
        raise ValueError("at first")

@app.task("stays")
def stays(task):
    record("began", task)
    while not os.path.exists(os.path.join(os.path.dirname(__file__), task.key + ".go")):
        time.sleep(0.01)

@app.task("submits")
def submits(task):
    with psched.open_queue({config!r}) as queue:
        queue.submit(task.key + ".next", "quick")
"""

TICK = "enqueue.quick"


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def url(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'psched.db'}"
        return
    with lab.shared(Redis if request.param == "redis" else KINDS[request.param]).database() as url:
        yield url


@pytest.fixture
def traced(make_daemon: Callable[..., Daemon], receiver: OtlpReceiver) -> Callable[..., Daemon]:
    """A function that prepares, but does not start, a daemon that sends its spans to the receiver."""

    def prepare(url: str = "sqlite:///psched.db", **config: Any) -> Daemon:
        sections = {"schedules": {"app": "psched.handlers.enqueue:Enqueue"}, "queue": {"app": "app:app"}}
        store = "redis" if url.startswith("redis") else "rdb"
        keys = {"type": store, "url": url, "app": None, "telemetry": "otel", **sections, **config}
        daemon = make_daemon(**keys)
        (daemon.folder / "app.py").rename(daemon.folder / "app_traces.py")
        (daemon.folder / "app.py").write_text(APPLICATION.replace("{config!r}", repr(str(daemon.config))))
        daemon.environ = {
            **receiver.environ,
            "OTEL_RESOURCE_ATTRIBUTES": "team=reports",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }
        with queue_of(daemon.settings()) as queue:
            queue.store.create_tables()
        return daemon

    return prepare


@contextmanager
def queue_of(settings: Settings) -> Iterator[Queue]:
    """Open the queue for use in the test process."""
    assert settings.queue is not None
    with open_queue(settings.queue, holder_name("test")) as queue:
        yield queue


@pytest.fixture
def submitter(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trace the submits of the test process with a tracer provider of its own, as in a web application."""
    provider = TracerProvider(shutdown_on_exit=False)
    endpoint = receiver.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces"
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint)))
    monkeypatch.setattr(otel, "_tracing", tracing := otel._Tracing())
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("psched"))
    otel.instrument()
    yield
    tracing.stop()
    provider.shutdown()


def only(spans: list[ReceivedSpan]) -> ReceivedSpan:
    (span,) = spans
    return span


def check_links(receiver: OtlpReceiver) -> None:
    """Check that each run of a queue task has its own trace, with a link to the span that submitted the task."""
    sends = {span.place: span for span in receiver.spans("send")}
    runs = [span for span in receiver.spans("process") if span.attributes["psched.section"] == "queue"]
    assert runs
    for run in runs:
        (link,) = run.links
        assert sends[link].name == f"send {run.name.removeprefix('process ')}"
        assert sends[link].key in (run.key, None)
        assert run.trace_id != link[0] and not run.parent_id


@pytest.mark.usefixtures("submitter")
def test_each_run_is_linked_to_its_submit_across_fork_retry_and_crash(
    traced: Callable[..., Daemon], receiver: OtlpReceiver, url: str
) -> None:
    daemon = traced(url, processors=2)
    with queue_of(daemon.settings()) as queue:
        queue.submit("s", "stays")
        daemon.start()
        psutil.Process(daemon.wait_for_trace("began", "s")["pid"]).kill()  # with the spans that it has not sent yet
        daemon.wait_for_trace("began", "s", count=2)
        queue.submit("u", "unsteady", headers={"mine": 1})
        queue.submit("parent", "submits")
        daemon.go("s")
        daemon.wait_for_trace("ran", "parent.next")
        daemon.wait_for(lambda: {queue[key].status() for key in ("u", "s", "parent")} == {"finished"})
        headers = queue["u"].metadata().headers
    assert daemon.end(signal.SIGTERM) == 0
    check_links(receiver)
    assert headers.keys() == {"mine", "traceparent"}

    first, second = receiver.spans("process", "u")
    assert (first.is_error, second.is_error) == (True, False)
    assert first.attributes["error.type"] == "ValueError" and first.attributes["psched.outcome"] == "retried"
    assert (first.attributes["psched.attempt"], second.attributes["psched.attempt"]) == (1, 2)
    assert first.links == second.links

    crashed = only(receiver.spans("process", "s"))  # the killed process took the span of the first run with it
    assert crashed.attributes["psched.attempt"] == 2
    assert crashed.attributes["messaging.system"] == "psched" and crashed.kind == "CONSUMER"
    assert crashed.resource["service.name"] == "psched" and crashed.resource["team"] == "reports"
    assert crashed.resource["process.pid"] != os.getpid()

    parent, send = only(receiver.spans("process", "parent")), only(receiver.spans("send", "parent.next"))
    assert (send.trace_id, send.parent_id, send.kind) == (*parent.place, "PRODUCER"), "submitted within that run"
    child = only(receiver.spans("process", "parent.next"))
    work = only([span for span in receiver.spans("work") if span.parent_id == child.span_id])
    assert daemon.wait_for_trace("ran", "parent.next")["trace_id"] == child.trace_id == work.trace_id
    for run in receiver.spans("process"):
        settle = only([span for span in receiver.spans("settle") if span.parent_id == run.span_id])
        assert settle.name == f"settle {run.name.removeprefix('process ')}"
        assert (settle.trace_id, settle.key, settle.kind) == (run.trace_id, run.key, "CLIENT")
        assert run.begin <= settle.begin <= settle.end


def test_a_schedule_s_run_begins_a_trace_that_leads_to_its_task(
    traced: Callable[..., Daemon], receiver: OtlpReceiver, url: str
) -> None:
    daemon = traced(url)
    daemon.add("tick", TICK)
    daemon.start()
    enqueued = daemon.wait_for_trace("ran")["key"]
    assert daemon.end(signal.SIGTERM) == 0
    check_links(receiver)
    run = only(receiver.spans("process", "tick"))
    assert (run.name, run.parent_id, run.links) == ("process enqueue.quick", "", ())
    send = only(receiver.spans("send", enqueued))
    assert (send.trace_id, send.parent_id) == run.place
    assert only(receiver.spans("process", enqueued)).links == (send.place,)


@pytest.mark.usefixtures("submitter")
def test_with_parent_submit_and_run_are_one_trace(traced: Callable[..., Daemon], receiver: OtlpReceiver) -> None:
    daemon = traced(telemetry={"otel": {"parent": True}})
    with queue_of(daemon.settings()) as queue:
        queue.submit("q", "quick")
    daemon.start()
    daemon.wait_for_trace("ran")
    assert daemon.end(signal.SIGTERM) == 0
    send, run = only(receiver.spans("send")), only(receiver.spans("process"))
    assert (run.trace_id, run.parent_id) == send.place
    assert run.links == (send.place,)


@pytest.mark.usefixtures("submitter")
def test_a_graceful_stop_loses_no_span(traced: Callable[..., Daemon], receiver: OtlpReceiver) -> None:
    daemon = traced(processors=2, max_request_per_child=40)
    daemon.environ["OTEL_BSP_SCHEDULE_DELAY"] = "600000"  # so that only a leaving child sends what it has
    keys = {f"q{number}" for number in range(100)}
    with queue_of(daemon.settings()) as queue:
        for key in sorted(keys):
            queue.submit(key, "quick")
        daemon.start()
        daemon.wait_for(lambda: len(daemon.traces("ran")) == len(keys))
    assert daemon.end(signal.SIGTERM) == 0
    assert {span.key for span in receiver.spans("process")} == keys
    assert {span.key for span in receiver.spans("settle")} == keys
    assert len(receiver.spans("work")) == len(keys)
    check_links(receiver)


def test_a_collector_that_is_away_harms_no_run(traced: Callable[..., Daemon]) -> None:
    daemon = traced()
    daemon.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    with queue_of(daemon.settings()) as queue:
        queue.submit("q", "quick")
        daemon.start()
        daemon.wait_for(lambda: queue["q"].status() == "finished")
    assert daemon.end(signal.SIGTERM) == 0


def test_the_provider_of_the_application_is_used(traced: Callable[..., Daemon], receiver: OtlpReceiver) -> None:
    daemon = traced()
    source = (daemon.folder / "app.py").read_text()
    own = """
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
provider = TracerProvider(resource=Resource.create({"service.name": "ours"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
"""
    (daemon.folder / "app.py").write_text(source + own)
    with queue_of(daemon.settings()) as queue:
        queue.submit("q", "quick")
    daemon.start()
    daemon.wait_for(lambda: receiver.spans("process", "q"))
    assert daemon.end(signal.SIGTERM) == 0
    assert {span.resource["service.name"] for span in receiver.spans()} == {"ours"}
    assert not only(receiver.spans("process")).links, "it was submitted without a trace"


def test_without_configuration_nothing_listens_and_nothing_is_sent(
    traced: Callable[..., Daemon], receiver: OtlpReceiver
) -> None:
    daemon = traced(telemetry=None)
    source = (daemon.folder / "app.py").read_text()
    listening = "[str(each) for each in telemetry._listeners.get('run_start', ())]"
    source = source.replace("trace_id=task.trace_id", f"trace_id=task.trace_id, listening={listening}")
    (daemon.folder / "app.py").write_text(source + "\nfrom psched import telemetry\n")
    with queue_of(daemon.settings()) as queue:
        queue.submit("q", "quick")
        assert not queue["q"].metadata().headers
    daemon.start()
    ran = daemon.wait_for_trace("ran")
    assert "contrib" not in str(ran["listening"]) and ran["trace_id"] is None
    assert daemon.end(signal.SIGTERM) == 0
    assert not receiver.spans()
