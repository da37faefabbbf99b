"""A small HTTP server on loopback that injects the faults of real servers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Faulty:
    """Serves files by path; `faults` has a list of faults per path, one for each of the first responses.

    Faults: a status code; ("drop", n): the connection breaks after n bytes; ("short", n): n bytes, and a length that
    says so; "corrupt": another byte in the middle; ("redirect", path).
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.faults: dict[str, list] = {}
        self.headers: dict[str, str] = {}  # further ones of each response
        self.requests: list[str] = []  # paths
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator["Faulty"]:
        """Serve for the duration of the block."""
        owner = self

        class Handler(_Handler):
            faulty = owner

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    faulty: Faulty

    def do_GET(self):
        faulty = self.faulty
        faulty.requests.append(self.path)
        waiting = faulty.faults.get(self.path)
        fault = waiting.pop(0) if waiting else None
        if isinstance(fault, int):
            self.send_error(fault)
            return
        if fault and fault[0] == "redirect":
            self.send_response(302)
            self.send_header("Location", fault[1])
            self.end_headers()
            return
        if self.path not in faulty.files:
            self.send_error(404)
            return
        self._send(faulty.files[self.path], fault)

    def _send(self, body, fault):
        if fault == "corrupt":
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 255]) + body[middle + 1 :]
        if fault and fault[0] == "short":
            body = body[: fault[1]]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        for name, value in self.faulty.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: fault[1]] if fault and fault[0] == "drop" else body)

    def log_message(self, *_):
        """Log nothing."""
