"""A server of chat completions that answers as a script says and keeps what it was asked.

It is the oracle of the load scripts: it takes its own times, and knows how many tokens it sent.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DONE = "[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one call gets. `hold` seconds pass before the headers, `pause` before the last event.

    An event that is text is sent as it is, any other as JSON.
    """

    status: int = 200
    tokens: int = 5
    acceptance: float | None = 2.5
    hold: float = 0.0
    pause: float = 0.0
    tail: Sequence[object] | None = None

    def events(self) -> list[object]:
        """The events of the stream, the last ones as `tail` says."""
        words = [{"choices": [{"delta": {"content": "word"}}]}] * 2
        return [*words, *(self.whole_tail() if self.tail is None else self.tail)]

    def whole_tail(self) -> list[object]:
        """How a stream that broke nowhere ends."""
        drafts = {"speculative_decoding": {"mean_acceptance_length": self.acceptance}}
        usage = {"completion_tokens": self.tokens}
        return [{"choices": [], "usage": usage, "metrics": drafts}, DONE]


@dataclass
class Peer:
    """What the server was asked, and the seconds that it took of its own for each answer."""

    answers: Callable[[int], Answer]
    metrics: str = ""
    url: str = ""
    bodies: list[dict] = field(default_factory=list)
    headers: list[dict] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def asked(self, body: dict, headers: dict) -> Answer:
        """Keep one question; its answer."""
        with self.lock:
            self.bodies.append(body)
            self.headers.append(headers)
            return self.answers(len(self.bodies) - 1)


@contextmanager
def peer(answers: Callable[[int], Answer], metrics: str = "") -> Iterator[Peer]:
    """A peer whose call number n, from 0, gets `answers(n)`, until the block ends."""
    told = Peer(answers, metrics)

    class Handler(_Handler):
        peer = told

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    peer: Peer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        page = self.peer.metrics if self.path == "/metrics" else '{"data": []}'
        self._send(200, page.encode())

    def do_POST(self) -> None:
        if self.path != "/v1/chat/completions":
            self._send(404, b"")
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = self.peer.asked(body, {k.lower(): v for k, v in self.headers.items()})
        time.sleep(answer.hold)  # the script of this peer, not a wait for anything
        if answer.status != 200:
            self._send(answer.status, b'{"error": {"message": "no"}}')
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        *most, last = answer.events()
        self._stream(most)
        time.sleep(answer.pause)
        self._stream([last])
        self.close_connection = True

    def _stream(self, events: Sequence[object]) -> None:
        for event in events:
            text = event if isinstance(event, str) else json.dumps(event)
            self.wfile.write(f"data: {text}\n\n".encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
