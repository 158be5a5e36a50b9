"""The server as it is put together for its command, on a free loopback port, in a thread."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
import uvloop

from scheduler.stats import FinishedStats, LoadStats, StepStats
from server import assembly
from server.api import Api, ApiOptions
from server.app import create_app
from server.backend import Backend
from server.connection import Connection
from server.outcomes import CallOutcome, OutcomeSink
from server.settings import Settings

_PATIENCE = 60


class _Nobody(OutcomeSink):
    """Is told of calls and rounds, and forgets."""

    def call(self, outcome: CallOutcome) -> None:
        """Nothing."""

    def step(self, stats: StepStats) -> None:
        """Nothing."""

    def load(self, load: LoadStats) -> None:
        """Nothing."""

    def finished(self, finished: FinishedStats) -> None:
        """Nothing."""


class _Server:
    """What lives in the thread. `url` stands once `started` is set, `problem` if it broke."""

    def __init__(self, settings: Settings) -> None:
        self.started = threading.Event()
        self.stop = threading.Event()
        self.url = ""
        self.problem: Exception | None = None
        self._settings = settings

    def run(self) -> None:
        """Serve until told to stop."""
        try:
            uvloop.run(self._serve())
        except Exception as problem:  # noqa: BLE001 - raised again where the thread is joined
            self.problem = problem
        self.started.set()

    async def _serve(self) -> None:
        loaded = assembly.load(self._settings)
        engine = assembly.build_engine(loaded, _Nobody())
        await engine.start()
        backend = Backend()
        backend.install(assembly.serving_over(engine, loaded, self._settings))
        api = Api(backend=backend, options=ApiOptions())
        app = create_app(api, metrics=lambda _: (b"", "text/plain"), outcomes=_Nobody())
        options = {"lifespan": "off", "ws": "none", "log_config": None, "http": Connection}
        server = uvicorn.Server(uvicorn.Config(app, **options))
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        # The socket listens already: a client that comes early only waits.
        self.started.set()
        await asyncio.to_thread(self.stop.wait)
        server.should_exit = True
        await serving
        await engine.stop()


@contextmanager
def serving(settings: Settings) -> Iterator[str]:
    """The address of a server until the block ends. Raises what kept it from starting."""
    server = _Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    if not server.started.wait(_PATIENCE):
        raise TimeoutError("the server did not start")
    try:
        if server.problem is not None:
            raise server.problem
        yield server.url
    finally:
        server.stop.set()
        thread.join(_PATIENCE)
