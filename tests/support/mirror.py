"""A provider that says what it is asked: for results whose every value is chosen in the test."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class _Mirror(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": body["messages"][-1]["content"]}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        wire = json.dumps({"model": body["model"], "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(wire)))
        self.end_headers()
        self.wfile.write(wire)

    def log_message(self, *args: object) -> None:
        """Says nothing."""


@contextmanager
def mirror() -> Iterator[str]:
    """Serves on loopback for the block; gives the base URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Mirror) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()
