"""The content of submits' spans, and the headers of tasks."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import psched
from psched import telemetry
from psched.config import from_mapping
from psched.contrib import otel
from psched.errors import AlreadyExistsError, ConfigError
from psched.model import NewTask
from psched.queue.queue import Queue, open_queue
from tests.unit.fake_task import Ledger

CONFIG = {"type": "rdb", "url": "sqlite:///:memory:", "queue": {}}


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    provider = TracerProvider(shutdown_on_exit=False)
    yield provider
    provider.shutdown()


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch) -> Iterator[otel._Tracing]:
    """Tracing for this test only. It is not started."""
    monkeypatch.setattr(otel, "_tracing", tracing := otel._Tracing())
    yield tracing
    tracing.stop()


@pytest.fixture
def exported(provider: TracerProvider, tracing: otel._Tracing) -> InMemorySpanExporter:
    """The finished spans of submits in this process."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing._tracer = provider.get_tracer("psched")
    otel.instrument()
    return exporter


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    section = from_mapping({**CONFIG, "url": f"sqlite:///{tmp_path / 'psched.db'}"}).queue
    assert section is not None
    with open_queue(section, "test") as queue:
        queue.store.create_tables()
        yield queue


def traceparent(span: ReadableSpan) -> str:
    place = span.get_span_context()
    assert place is not None
    return f"00-{place.trace_id:032x}-{place.span_id:016x}-{place.trace_flags:02x}"


def headers_of(queue: Queue, key: str) -> dict[str, Any]:
    return dict(queue[key].metadata().headers)


def test_a_submit_is_a_span_whose_context_is_in_the_headers(queue: Queue, exported: InMemorySpanExporter) -> None:
    queue.submit("r1", "report", headers={"team": "sales"})
    (span,) = exported.get_finished_spans()
    assert (span.name, span.kind) == ("send report", trace.SpanKind.PRODUCER)
    assert dict(span.attributes or {}) == {
        "messaging.system": "psched",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "report",
        "messaging.message.id": "r1",
    }
    assert headers_of(queue, "r1") == {"team": "sales", "traceparent": traceparent(span)}


def test_many_tasks_are_one_span_for_each_type(queue: Queue, exported: InMemorySpanExporter) -> None:
    queue.submit_many([NewTask("a1", "a"), NewTask("b1", "b"), NewTask("a2", "a")])
    spans = {span.name: span for span in exported.get_finished_spans()}
    assert spans.keys() == {"send a", "send b"}
    for key in ("a1", "a2", "b1"):
        assert headers_of(queue, key) == {"traceparent": traceparent(spans[f"send {key[0]}"])}
    assert (spans["send a"].attributes or {})["messaging.batch.message_count"] == 2


def test_an_awaited_submit_is_a_child_of_the_span_around_it(
    queue: Queue, provider: TracerProvider, exported: InMemorySpanExporter
) -> None:
    async def request(number: int) -> None:
        with provider.get_tracer("web").start_as_current_span(f"request {number}"):
            await queue.asubmit(f"r{number}", "report")

    async def requests() -> None:
        await asyncio.gather(*(request(number) for number in range(5)))

    asyncio.run(requests())
    spans = {span.get_span_context().span_id: span for span in exported.get_finished_spans()}  # type: ignore[union-attr]
    sends = [span for span in spans.values() if span.name == "send report"]
    assert len(sends) == 5
    for span in sends:
        key = str((span.attributes or {})["messaging.message.id"])
        assert span.parent is not None and spans[span.parent.span_id].name == f"request {key[1:]}"
        assert headers_of(queue, key) == {"traceparent": traceparent(span)}


def test_a_failed_submit_is_an_error_and_a_key_that_exists_is_none(
    queue: Queue, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.submit("r1", "report")
    with pytest.raises(AlreadyExistsError):
        queue.submit("r1", "report")
    with pytest.raises(ValueError, match="cannot be stored as JSON"):
        queue.submit("r2", "report", headers={"x": object()})
    _, existed, failed = exported.get_finished_spans()
    assert existed.status.is_unset and (existed.attributes or {})["psched.existing_tasks"] == 1
    assert not failed.status.is_ok and (failed.attributes or {})["error.type"] == "ValueError"
    assert context.get_current() == context.Context(), "each span has been left"


def test_what_the_caller_has_set_is_kept(queue: Queue, exported: InMemorySpanExporter) -> None:
    queue.submit("r1", "report", headers={"traceparent": "his own"})
    assert headers_of(queue, "r1") == {"traceparent": "his own"}


@pytest.mark.usefixtures("exported")
def test_headers_take_as_much_context_as_they_have_room_for(queue: Queue) -> None:
    token = context.attach(baggage.set_baggage("customer", "x" * 2000))
    try:
        queue.submit("small", "report")
        queue.submit("large", "report", headers={"mine": "y" * 3000})
        queue.submit("full", "report", headers={"mine": "y" * 4080})
    finally:
        context.detach(token)
    assert headers_of(queue, "small").keys() == {"traceparent", "baggage"}
    assert headers_of(queue, "large").keys() == {"mine", "traceparent"}
    assert headers_of(queue, "full").keys() == {"mine"}


def test_without_a_provider_tasks_get_no_headers(queue: Queue, tracing: otel._Tracing) -> None:
    otel.instrument()
    queue.submit("r1", "report")
    assert headers_of(queue, "r1") == {}


def test_a_statement_of_submit_sql_has_the_context(queue: Queue, exported: InMemorySpanExporter) -> None:
    _, parameters = queue.submit_sql(NewTask("r1", "report"), "named")
    (span,) = exported.get_finished_spans()
    assert json.dumps({"traceparent": traceparent(span)}, separators=(",", ":")) in dict(parameters).values()


def test_an_embedded_scheduler_links_a_run_to_its_push(exported: InMemorySpanExporter, tmp_path: Path) -> None:
    done = threading.Event()
    scheduler = psched.create_scheduler(f"sqlite:///{tmp_path / 'scheduler.db'}", poll_interval=0.05)
    scheduler.bind("report")(lambda data: done.set())
    scheduler.push("report", data=1)
    scheduler.start()
    assert done.wait(20)
    scheduler.stop()
    spans = {span.name: span for span in exported.get_finished_spans()}
    assert spans.keys() == {"send report", "process report", "settle report"}
    (link,) = spans["process report"].links
    send = spans["send report"].get_span_context()
    assert send is not None and (link.context.trace_id, link.context.span_id) == (send.trace_id, send.span_id)


def test_what_a_worker_does_after_a_run_is_no_part_of_it(exported: InMemorySpanExporter) -> None:
    task = Ledger().task()
    telemetry.emit("run_start", section="schedules", task=task)
    run = trace.get_current_span().get_span_context()
    telemetry.emit("run_end", section="schedules", task=task, seconds=0.1)
    (span,) = exported.get_finished_spans()
    assert span.get_span_context() == run
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_store_without_headers_gets_none(exported: InMemorySpanExporter, tmp_path: Path) -> None:
    config = {"type": "rdb_compat", "url": f"sqlite:///{tmp_path / 'compat.db'}", "queue": {}}
    section = from_mapping(config).queue
    assert section is not None
    with open_queue(section, "test") as queue:
        queue.store.create_tables()
        queue.submit("r1", "report")
    (span,) = exported.get_finished_spans()
    assert span.name == "send report"


def test_opening_a_table_attaches_the_listeners_that_are_configured(tracing: otel._Tracing, tmp_path: Path) -> None:
    config = {**CONFIG, "url": f"sqlite:///{tmp_path / 'psched.db'}"}
    with pytest.raises(ConfigError):  # the table is missing
        psched.open_queue({**config, "telemetry": "otel"})
    listeners = telemetry._listeners["submit_start"]
    assert [listener for listener in listeners if getattr(listener, "__self__", None) is tracing]


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (5, "config: telemetry: expected otel, a module, or a list of them; options as in otel: {parent: true}, got 5"),
        ("otle", "config: telemetry: 'otle' is not a module of psched; expected otel, or your own module such as"),
        ("no.such", "config: telemetry: cannot import no.such: No module named 'no'"),
        ("os.path", "config: telemetry: os.path has no function `instrument`"),
        ({"otel": {"parents": True}}, "config: telemetry.otel.parents: unknown option, expected parent; did you mean"),
        ({"otel": {"parent": "yes"}}, "config: telemetry.otel: parent must be true or false, got 'yes'"),
    ],
)
@pytest.mark.usefixtures("tracing")
def test_a_wrong_configuration_is_reported(value: object, fault: str) -> None:
    with pytest.raises(ConfigError) as told:
        psched.open_queue({**CONFIG, "telemetry": value})
    assert str(told.value).startswith(fault)
