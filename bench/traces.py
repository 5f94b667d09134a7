"""What traces and metrics by OpenTelemetry's protocol cost a row: runs without and with them take turns.

    python bench/traces.py                     20,000 rows, 5 runs of each
    python bench/traces.py --rows 5000 --runs 7 --sample 0.1

The CPU of the start is taken off: that of a run of one row, which loads the packages too. Printed are medians, the
ratio of runs that stood next to each other, and that of the least of each: on a busy machine these tell more.
"""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median

from processes import stub
from workspace import Workspace, workspace

VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
CONCURRENCY = 64


class Sink(BaseHTTPRequestHandler):
    """A collector that looks at nothing; its time is not that of agac, which is another process."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Takes a request."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def collector() -> Iterator[str]:
    """The address of a collector that is there for the block."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Sink) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def main() -> None:
    """Measures, and prints one line for each way."""
    parser = argparse.ArgumentParser(description="What traces cost a row.")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--sample", type=float, default=0.1, help="share of the rows whose traces are sent")
    asked = parser.parse_args()
    taken: dict[str, list[float]] = {"off": [], "off again": [], "on": []}
    with (
        stub() as server, collector() as address,
        workspace(server, asked.rows, concurrency=CONCURRENCY) as many,
        workspace(server, 1, concurrency=CONCURRENCY) as one,
    ):  # fmt: skip
        for space in (one, many):
            with (space.root / "agac.yml").open("a", encoding="utf-8") as file:
                file.write(f"telemetry: {{sample: {asked.sample}}}\n")
        for _ in range(asked.runs):
            for way in taken:
                if way == "on":
                    os.environ[VARIABLE] = address
                start, whole = (_cpu(space) for space in (one, many))
                os.environ.pop(VARIABLE, None)
                taken[way].append(1e6 * (whole - start) / asked.rows)
    for way, values in taken.items():
        ratio = median(value / off for value, off in zip(values, taken["off"], strict=True))
        least = min(values) / min(taken["off"])
        print(
            f"{way:10} {median(values):6.1f} µs of CPU a row; of off: {ratio:.3f}, of the least {least:.3f}", flush=True
        )


def _cpu(space: Workspace) -> float:
    space.forget()
    return space.agac("run", "-a", "b").cpu


if __name__ == "__main__":
    main()
