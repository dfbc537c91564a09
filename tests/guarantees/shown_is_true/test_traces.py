"""Traces of ended jobs: made from the event log, sent by one coordinator, at least once, with the
same ids.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.support.coordinator import SUCCEEDED, Coordinator, failed, group
from tests.support.servers import wait_until
from unstuck import Status
from unstuck.coordinator.traces.otel import TraceExport, exporters_of, trace_id
from unstuck.coordinator.traces.trace_sender import REFUSED, TraceSender, wanted

AT_ONCE = {"max": 1, "backoff": 0, "jitter": 0.0}


def sender(coordinator: Coordinator, exporter: SpanExporter, name: str = "one") -> TraceSender:
    retention = coordinator.settings.retention
    return TraceSender(
        coordinator.redis, coordinator.keys, retention, TraceExport([exporter], {}), name
    )


def by_name(exporter: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    found: dict[str, list[ReadableSpan]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


def ids(exporter: InMemorySpanExporter) -> set[tuple[int, int, int]]:
    spans = exporter.get_finished_spans()
    return {
        (span.context.trace_id, span.context.span_id, span.parent.span_id if span.parent else 0)
        for span in spans
        if span.context
    }


def ended(coordinator: Coordinator) -> str:
    """A job whose group ``a`` failed once, and whose group ``b`` failed for good."""
    job = coordinator.submit(
        group("a", retry=AT_ONCE), group("b", "a", retry={"max": 0}), name="nightly"
    )
    for outcome in (failed(), SUCCEEDED, failed()):
        coordinator.read()
        coordinator.sweep.run()
        (offer,) = coordinator.offers(job)
        coordinator.work(offer, outcome)
    coordinator.read()
    assert coordinator.status(job) is Status.FAILED
    return job


def test_a_trace_contains_job_groups_and_attempts_with_times_and_errors(
    coordinator: Coordinator,
) -> None:
    job = ended(coordinator)
    exporter = InMemorySpanExporter()
    assert sender(coordinator, exporter).look() == 1
    spans = by_name(exporter)
    assert {name: len(those) for name, those in spans.items()} == {
        "nightly": 1,
        "a": 1,
        "b": 1,
        "attempt of a": 2,
        "attempt of b": 1,
    }
    record = coordinator.show(job)
    (root,) = spans["nightly"]
    assert root.context is not None
    assert root.context.trace_id == trace_id(job)
    assert (root.start_time, root.end_time) == (
        int(record.submitted_at * 1e9),
        int(record.ended_at * 1e9),
    )
    assert root.status.status_code is StatusCode.ERROR
    assert root.status.description is not None
    assert "group b failed" in root.status.description
    assert root.events[0].name == "SUBMITTED"
    (a,), (b,) = spans["a"], spans["b"]
    assert a.status.status_code is StatusCode.UNSET
    assert b.attributes is not None
    assert (b.status.status_code, b.attributes["error.type"]) == (StatusCode.ERROR, "STEP_FAILED")
    for one in (a, b):
        assert one.parent == root.context
    first, second = spans["attempt of a"]
    assert [one.status.status_code for one in (first, second)] == [
        StatusCode.ERROR,
        StatusCode.UNSET,
    ]
    for number, one in enumerate((first, second), 1):
        assert one.parent == a.context
        assert one.attributes is not None
        assert one.start_time is not None
        assert one.end_time is not None
        assert (one.attributes["unstuck.attempt"], one.attributes["unstuck.job.id"]) == (
            number,
            job,
        )
        queued, ran = (
            float(str(one.attributes["unstuck.queue_time"])),
            float(str(one.attributes["unstuck.run_time"])),
        )
        assert min(queued, ran) >= 0
        assert (one.end_time - one.start_time) / 1e9 == pytest.approx(queued + ran, abs=1e-5)
        assert [point.name for point in one.events] == ["claimed"]
    assert first.end_time is not None
    assert second.start_time is not None
    assert first.end_time <= second.start_time


def test_each_trace_is_sent_once_or_after_a_crash_with_the_same_ids(
    coordinator: Coordinator,
) -> None:
    job = ended(coordinator)
    exporter, again = InMemorySpanExporter(), InMemorySpanExporter()
    one = sender(coordinator, exporter)
    assert (one.look(), one.look()) == (1, 0)
    sent = ids(exporter)
    assert len(sent) == 6
    # It died between the export and its note; another coordinator sends.
    coordinator.redis.zrem(coordinator.keys.traced, job)
    coordinator.redis.delete(coordinator.keys.trace_sender)
    other = sender(coordinator, again, "two")
    assert (other.look(), other.look()) == (1, 0)
    assert ids(again) == sent
    assert one.look() == 0, "the other one sends"


class Refusing(InMemorySpanExporter):
    """As a collector that is away."""

    refuses = True

    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.FAILURE if self.refuses else super().export(spans)


def test_unsent_traces_are_sent_later_without_loss(
    coordinator: Coordinator,
) -> None:
    jobs = [ended(coordinator), ended(coordinator)]
    exporter = Refusing()
    one = sender(coordinator, exporter)
    assert (one.look(), one.look()) == (0, 0)
    exporter.refuses = False
    assert one.look() == 2
    assert {span.context.trace_id for span in exporter.get_finished_spans() if span.context} == set(
        map(trace_id, jobs)
    )


class RefusesSome(InMemorySpanExporter):
    """As a collector that refuses some traces, whatever is done. ``tries``: of each of these."""

    def __init__(self, *jobs: str) -> None:
        super().__init__()
        self.tries = dict.fromkeys(map(trace_id, jobs), 0)

    def export(self, spans: Any) -> SpanExportResult:
        trace = spans[0].context.trace_id
        if trace not in self.tries:
            return super().export(spans)
        self.tries[trace] += 1
        return SpanExportResult.FAILURE


@pytest.mark.variant
def test_permanently_refused_traces_are_dropped_and_block_no_others(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    refused = [ended(coordinator) for _ in range(3)]
    others = [ended(coordinator)]
    exporter = RefusesSome(*refused)
    one = sender(coordinator, exporter)
    assert one.look() == 0, "two failures in a row: the collector may be away"
    assert one.look() == 1, "what has not failed yet comes first"
    for _ in range(20):
        others.append(ended(coordinator))
        assert one.look() == 1
    assert {span.context.trace_id for span in exporter.get_finished_spans() if span.context} == set(
        map(trace_id, others)
    )
    tries = list(exporter.tries.values())
    assert max(tries) <= REFUSED + 1, "each of them was given up"
    for job in refused:
        assert (
            f"the trace of job {job} has failed {REFUSED} times while others arrived" in caplog.text
        )
    assert one.look() == 0
    assert list(exporter.tries.values()) == tries


def test_a_retry_links_to_its_job_and_fork_members_are_groups(
    coordinator: Coordinator,
) -> None:
    job = ended(coordinator)
    fork = {"name": "f", "groups": [group("f", for_each={"n": [1, 2]})]}
    forked = coordinator.client.submit(fork).id
    assert coordinator.drive(forked) is Status.FINISHED
    retry = coordinator.client.retry(job).id
    assert coordinator.drive(retry) is Status.FINISHED
    exporter = InMemorySpanExporter()
    assert sender(coordinator, exporter).look() == 3
    roots = {
        span.context.trace_id: span
        for span in exporter.get_finished_spans()
        if span.context and not span.parent
    }
    assert [link.context.trace_id for link in roots[trace_id(retry)].links] == [trace_id(job)]
    spans = by_name(exporter)
    assert sorted(
        str((one.attributes or {})["unstuck.group"]) for one in spans["f"] if one.parent
    ) == ["f[0]", "f[1]"]


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        ({}, False),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318", "OTEL_SDK_DISABLED": "TRUE"}, False),
    ],
)
def test_opentelemetry_variables_enable_traces(environ: dict[str, str], on: bool) -> None:
    assert wanted(environ) is on


def test_opentelemetry_variables_select_the_exporter() -> None:
    assert [
        type(one).__name__ for one in exporters_of({"OTEL_TRACES_EXPORTER": "console, otlp"})
    ] == [
        "ConsoleSpanExporter",
        "OTLPSpanExporter",
    ]
    with pytest.raises(LookupError, match="no exporter zipkins is installed"):
        exporters_of({"OTEL_TRACES_EXPORTER": "zipkins"})


@pytest.mark.variant
def test_a_coordinator_imports_opentelemetry_only_if_traces_are_enabled() -> None:
    # redis-py imports the API where it is installed.
    code = (
        "import sys, unstuck.coordinator.celery; sys.exit('opentelemetry.sdk.trace' in sys.modules)"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    assert subprocess.run([sys.executable, "-c", code], env=environ, check=False).returncode == 0


class Collector(ThreadingHTTPServer):
    """Receives traces as a collector does, over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Received)
        self.received: list[ExportTraceServiceRequest] = []


class _Received(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.mark.variant
def test_a_real_coordinator_sends_traces_to_the_configured_collector(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    job = ended(coordinator)
    with Collector() as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        environ = {
            "UNSTUCK_REDIS_URL": coordinator.settings.redis_url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=night",
        }
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "unstuck.coordinator",
            "worker",
            "-P",
            "threads",
            "-l",
            "INFO",
        ]
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                command, env={**os.environ, **environ}, cwd=tmp_path, stdout=log, stderr=log
            )
        try:
            wait_until(lambda: collector.received, 60, "a trace")
        finally:
            process.terminate()
            process.wait()
            collector.shutdown()
    (resource,) = collector.received[0].resource_spans
    of_resource = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert (of_resource["service.name"], of_resource["deployment.environment"]) == (
        "unstuck",
        "night",
    )
    (scope,) = resource.scope_spans
    assert {int.from_bytes(span.trace_id, "big") for span in scope.spans} == {trace_id(job)}
    assert len(scope.spans) == 6
