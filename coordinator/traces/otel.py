"""Traces through the SDK of OpenTelemetry, with the exporter of the user's ``OTEL_*`` variables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode, set_span_in_context

from unstuck.coordinator.traces.spans import JobSpan
from unstuck.tasks.identity import release_here

AT_ONCE = 512  # spans of one export, as the SDK's own processor sends them
_OTLP = {"grpc": ("otlp_proto_grpc",), "http/protobuf": ("otlp_proto_http",)}


def trace_id(job: str) -> int:
    """It follows from the id of the job: a trace that is sent twice is one trace."""
    return _number(f"unstuck/{job}", 16)


def span_id(key: str) -> int:
    return _number(f"unstuck/{key}", 8)


def _number(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big") or 1


class _GivenIds(IdGenerator):
    """Gives the next span the ids that are set here."""

    trace = span = 0

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self.span


class _Collected(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self.spans.append(span)


class TraceExport:
    """Makes the spans of one trace and exports them. For one thread."""

    def __init__(self, exporters: Iterable[SpanExporter], environ: Mapping[str, str]) -> None:
        self._exporters = list(exporters)
        self._ids, self._collected = _GivenIds(), _Collected()
        named = "OTEL_SERVICE_NAME" in environ or "service.name=" in environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        resource = Resource.create({} if named else {"service.name": "unstuck"})
        provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        provider.add_span_processor(self._collected)
        self._tracer = provider.get_tracer("unstuck", release_here().release)

    def __call__(self, spans: Iterable[JobSpan]) -> bool:
        """Export one trace. False: not all of it has arrived."""
        self._collected.spans = []
        exported: dict[str, Span] = {}
        for job_span in spans:
            around = (
                set_span_in_context(exported[job_span.parent]) if job_span.parent else Context()
            )
            if not job_span.parent:
                self._ids.trace = trace_id(job_span.key)
            self._ids.span = span_id(job_span.key)
            span = self._tracer.start_span(
                job_span.name,
                around,
                attributes=dict(job_span.attributes),
                links=[
                    Link(SpanContext(trace_id(job), span_id(job), is_remote=True))
                    for job in job_span.follows
                ],
                start_time=_nanoseconds(job_span.start),
            )
            for name, at, text in job_span.points:
                span.add_event(name, {"text": text} if text else {}, _nanoseconds(at))
            if job_span.error is not None:
                code, text = job_span.error
                span.set_attribute("error.type", code)
                span.set_status(Status(StatusCode.ERROR, f"{code}: {text}"))
            exported[job_span.key] = span
            span.end(_nanoseconds(job_span.end))
        ready = self._collected.spans
        return all(
            exporter.export(ready[at : at + AT_ONCE]) is SpanExportResult.SUCCESS
            for exporter in self._exporters
            for at in range(0, len(ready), AT_ONCE)
        )

    def close(self) -> None:
        for exporter in self._exporters:
            exporter.shutdown()


def exporters_of(environ: Mapping[str, str]) -> list[SpanExporter]:
    """Return the exporters that ``OTEL_TRACES_EXPORTER`` names. Raises: LookupError.

    Each exporter reads its own variables.
    """
    exporters = []
    for name in environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
        protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL", ""
        )
        names = (
            _OTLP.get(protocol, ("otlp_proto_grpc", "otlp_proto_http"))
            if name.strip() == "otlp"
            else (name.strip(),)
        )
        points: list[Any] = [
            point
            for entry_name in names
            for point in entry_points(group="opentelemetry_traces_exporter", name=entry_name)
        ]
        if not points:
            raise LookupError(f"no exporter {' or '.join(names)} is installed")
        exporters.append(points[0].load()())
    return exporters


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)
