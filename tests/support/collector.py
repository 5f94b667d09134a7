"""A collector of OpenTelemetry's on loopback: it reads what is sent, and shows traces as trees."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Span:
    """A span as it was sent; ids in hexadecimal, times in nanoseconds."""

    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    kind: int
    failed: bool
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    children: list[Span] = field(default_factory=list)

    def __getitem__(self, key: str) -> Any:
        return self.attributes[key]

    def find(self, start: str) -> list[Span]:
        """This span and those below whose names begin so, in the order of time."""
        own = [self] if self.name.startswith(start) else []
        return own + [one for child in self.children for one in child.find(start)]

    @property
    def outline(self) -> Any:
        """Its name and those below it."""
        return {self.name: [child.outline for child in self.children]} if self.children else self.name


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [_value(one) for one in found.values] if kind == "array_value" else found


def _attributes(given: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in given}


class Collector:
    """What came. `answers` is the status that it answers with; `hangs`: it never does, until it is set."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: dict[str, Any] = {}
        self.resource: dict[str, Any] = {}
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.answers = 200
        self.hangs: threading.Event | None = None
        self.address = ""

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which everything is sent here."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.address}

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        """One request."""
        self.headers.append(headers)
        self.bodies.append(body)
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resource = _attributes(resource.resource.attributes)
                self.spans += [_span(one) for scope in resource.scope_spans for one in scope.spans]
        else:
            assert path == "/v1/metrics"
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    self.metrics |= {metric.name: metric for metric in scope.metrics}

    def trees(self, name: str = "row ") -> list[Span]:
        """The first spans of traces whose names begin so, with those below them, each of which has its parent and lies
        within it."""
        by_id = {(one.trace, one.id): one for one in self.spans}
        assert len(by_id) == len(self.spans), "two spans have the same id"
        for one in self.spans:
            one.children = sorted((s for s in self.spans if (s.trace, s.parent) == (one.trace, one.id)), key=_order)
        for one in self.spans:
            assert one.start <= one.end, one.name
            if one.parent:
                above = by_id[one.trace, one.parent]
                assert above.start <= one.start <= one.end <= above.end, (above.name, one.name)
        return sorted((one for one in self.spans if not one.parent and one.name.startswith(name)), key=_order)

    def rows(self) -> dict[str, Span]:
        """The traces of rows, by id."""
        trees = self.trees()
        assert len({one["agac.row.id"] for one in trees}) == len(trees)
        return {one["agac.row.id"]: one for one in trees}

    def points(self, metric: str) -> list[tuple[dict[str, Any], Any]]:
        """The last values of a metric with their attributes: numbers; of a histogram its point."""
        found = self.metrics[metric]
        points = getattr(found, found.WhichOneof("data")).data_points
        return [
            (
                _attributes(one.attributes),
                one if hasattr(one, "bucket_counts") else one.as_int if one.HasField("as_int") else one.as_double,
            )
            for one in points
        ]

    def value(self, metric: str, **attributes: Any) -> Any:
        """The one value of a metric that has these attributes: `stage` is `agac.stage`."""
        wanted = {key if "." in key else f"agac.{key}": value for key, value in attributes.items()}
        (found,) = [value for about, value in self.points(metric) if wanted.items() <= about.items()]
        return found


def _order(span: Span) -> tuple[int, int]:
    return span.start, span.end


def _span(one: Any) -> Span:
    links = [(link.trace_id.hex(), link.span_id.hex()) for link in one.links]
    return Span(
        one.name, one.trace_id.hex(), one.span_id.hex(), one.parent_span_id.hex(), one.start_time_unix_nano,
        one.end_time_unix_nano, one.kind, one.status.code == 2, _attributes(one.attributes), links,
    )  # fmt: skip


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens for the block."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if collector.hangs is not None:
                collector.hangs.wait()
                self.close_connection = True
                return
            if collector.answers == 200:
                unpacked = gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body
                collector.take(self.path, unpacked, dict(self.headers))
            self.send_response(collector.answers)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that is called
            pass

    class Listening(ThreadingHTTPServer):
        daemon_threads = True

    with Listening(("127.0.0.1", 0), Handler) as server:
        collector.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            if collector.hangs is not None:
                collector.hangs.set()
            server.shutdown()
            thread.join()
