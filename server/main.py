"""The server process: listen, load, answer, drain. The composition root.

It listens before the models are loaded, so that probes get an answer: /health says 200 and /ready
says 503 until then. Importing what loads them takes seconds too, so that it waits as well.
"""

import asyncio
import importlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from prometheus_client import CollectorRegistry

from scheduler.guards import GuardedSink
from scheduler.runner import ModelIdentity
from scheduler.stats import StatsSink
from server.api import Api, ApiOptions
from server.app import create_app
from server.backend import Backend
from server.connection import Connection
from server.detached import detached
from server.outcomes import CallOutcome, OutcomeSink
from server.settings import Settings, SettingsError, ignored_variables
from server.translate import Wishes
from server.version import version
from telemetry.acceptance_log import AcceptanceLog
from telemetry.acceptance_log_files import RotatingFile
from telemetry.acceptance_log_lines import LogHeader, header_line, is_header
from telemetry.aliases import VllmAliases
from telemetry.batches import Batches
from telemetry.decision_log import DecisionLog
from telemetry.fan_out import FanOut
from telemetry.loop_lag import LagMonitor
from telemetry.metrics import Metrics, new_registry
from telemetry.page import render
from telemetry.round_log import RoundLog
from telemetry.sink import PrometheusSink
from telemetry.slo import WishKind
from telemetry.state_bytes import RowBytes

if TYPE_CHECKING:
    from scheduler.engine import Engine
    from server.assembly import Loaded
    from telemetry.otlp import Traces

__all__ = ["serve"]

logger = logging.getLogger("fencepost")

# Longer than load balancers keep an idle connection, so that it is they who close it.
_KEEP_ALIVE_SECONDS = 75
_LAST_WORDS_SECONDS = 5
_GENERATION = frozenset({"/v1/completions", "/v1/chat/completions"})


def serve(settings: Settings) -> int:
    """Run until a signal ends it; returns the exit status.

    Raises SettingsError or ConfigRefused when it cannot start.
    """
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    foreign = ignored_variables()
    if foreign:
        logger.info("no settings, but what Kubernetes tells of a Service: %s", ", ".join(foreign))
    return uvloop.run(_Process(settings).run())


class _HttpOutcomes(OutcomeSink):
    """Counts calls by status class, those that ask for tokens apart."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def call(self, outcome: CallOutcome) -> None:
        """Count one call."""
        self._metrics.http.count(outcome.status, generation=outcome.route in _GENERATION)


class _Listener(uvicorn.Server):
    """Leaves signals to the process: its own handling would close the socket before the drain."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Change no handler."""
        yield


class _Process:
    """What lives as long as the process. `loaded` appears once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._backend = Backend(heartbeat_seconds=settings.heartbeat_seconds)
        self._registry: CollectorRegistry = new_registry()
        self._loaded: Loaded | None = None
        self._log: AcceptanceLog | None = None
        kept = settings.debug_rounds
        self._rounds = None if kept is None else RoundLog(kept)
        self._wishes = Wishes(
            ttft=_seconds(settings.slo_ttft_ms), tpot=_seconds(settings.slo_tpot_ms)
        )
        self._traces = _traces(settings.otel_endpoint)
        self._stop = asyncio.Event()
        self._signals = 0
        self._metrics = Metrics(
            self._registry,
            model=settings.names[0],
            k_max=settings.longest_draft,
            domains=settings.domains,
            device_memory=self._device_memory,
            build={"version": version(), "model": settings.names[0]},
        )
        for kind, wish in zip(WishKind, (self._wishes.ttft, self._wishes.tpot), strict=True):
            if wish is not None:
                self._metrics.slo.wish(kind, wish)
        VllmAliases(self._registry, self._metrics, model_name=settings.names[0])
        sinks: list[StatsSink] = [PrometheusSink(self._metrics), DecisionLog(time.monotonic)]
        if self._rounds is not None:
            sinks.append(self._rounds)
        self._batches = Batches(FanOut(*map(GuardedSink, sinks)))

    async def run(self) -> int:
        """Listen, load, serve, drain."""
        self._take_signals()
        listener = _listen(self._settings)
        server = _Listener(self._uvicorn_config())
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        lag = asyncio.create_task(LagMonitor(self._metrics.loop_lag.observe, time.monotonic).run())
        while not (server.started or serving.done()):  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.01)
        engine: Engine | None = None
        try:
            engine = await self._load_or_stop()
            if engine is not None:
                self._announce(listener)
                await self._until_stopped(serving)
        finally:
            if engine is not None:
                await self._drain(engine)
            for closing in (self._log, self._traces):
                if closing is not None:
                    await asyncio.to_thread(closing.close)
            server.should_exit = True
            await serving
            lag.cancel()
        return 0

    def _uvicorn_config(self) -> uvicorn.Config:
        settings = self._settings
        options = ApiOptions(
            api_keys=tuple(key.get_secret_value() for key in settings.api_key),
            body_limit=settings.body_limit,
            domains=frozenset(settings.domains),
            wishes=self._wishes,
        )
        app = create_app(
            Api(backend=self._backend, options=options),
            metrics=self._metrics_page,
            outcomes=_HttpOutcomes(self._metrics),
            rounds=None if self._rounds is None else partial(self._rounds_page, self._rounds),
            page=settings.page,
        )
        return uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
        )

    async def _metrics_page(self, accept: str) -> tuple[bytes, str]:
        """Rendered in a thread: it takes longer than a round should wait."""
        self._batches.flush()
        return await asyncio.to_thread(render, self._registry, accept)

    def _rounds_page(self, rounds: RoundLog, last: int | None) -> bytes:
        self._batches.flush()
        return rounds.page(last)

    async def _load_or_stop(self) -> "Engine | None":
        """The started engine; None when a signal came first. Raises what loading raised."""
        loading = asyncio.create_task(self._load())
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait((loading, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if loading.done():
            return loading.result()
        loading.cancel()
        with suppress(asyncio.CancelledError):
            await loading
        return None

    async def _load(self) -> "Engine":
        settings = self._settings
        assembly = await detached(importlib.import_module, "server.assembly")
        loaded: Loaded = await detached(assembly.load, settings)
        # Ray puts a handler below Python's own that aborts the process three seconds later.
        self._take_signals()
        await assembly.warm_up(loaded)
        sink = await asyncio.to_thread(self._sink, loaded)
        engine: Engine = assembly.build_engine(loaded, sink)
        await engine.start()
        assembly.settle()
        self._loaded = loaded
        self._backend.install(assembly.serving_over(engine, loaded, settings))
        logger.info("tokenizer_size=%d", len(loaded.tokenizer.pieces.table))
        return engine

    def _sink(self, loaded: "Loaded") -> StatsSink:
        """Where the engine reports to. Blocks. Raises SettingsError when a log cannot be begun."""
        pair = loaded.pair
        self._metrics.state.size(
            RowBytes(
                target=pair.target_row_bytes, draft=pair.draft_row_bytes, law=pair.law_row_bytes
            )
        )
        sinks: list[StatsSink] = [self._batches]
        self._log = self._acceptance_log(loaded)
        if self._log is not None:
            sinks.append(self._log)
        if self._traces is not None:
            sinks.append(self._traces.sink(self._settings.names[0], time.monotonic, time.time))
        return FanOut(*map(GuardedSink, sinks))

    def _acceptance_log(self, loaded: "Loaded") -> AcceptanceLog | None:
        """The log that was asked for, begun. Blocks. Raises SettingsError when it cannot be."""
        settings = self._settings
        if settings.acceptance_log is None:
            return None
        try:
            file = RotatingFile(
                settings.acceptance_log,
                limit=settings.acceptance_log_bytes,
                kept=settings.acceptance_log_files,
                header=partial(header_line, _log_header(settings, loaded)),
                own=is_header,
            )
        except OSError as problem:
            raise SettingsError(f"acceptance_log={settings.acceptance_log}: {problem}") from None
        metrics = self._metrics.acceptance_log
        return AcceptanceLog(file, metrics, domains=settings.domains)

    def _announce(self, listener: socket.socket) -> None:
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        name = self._settings.names[0]
        print(f"Fencepost serves {name} at http://{shown}:{port}", flush=True)  # noqa: T201

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        self._signals += 1
        self._stop.set()

    async def _until_stopped(self, serving: asyncio.Task[None]) -> None:
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()

    async def _drain(self, engine: "Engine") -> None:
        """Refuse new requests, let the running ones end; a second signal cuts it short."""
        grace = self._settings.drain_seconds
        logger.info("draining for up to %.0f s", grace)
        draining = asyncio.create_task(engine.stop(grace=grace))
        while not draining.done() and self._signals < 2:
            await asyncio.wait((draining,), timeout=0.2)
        if not draining.done():
            await engine.stop()
        await draining

    def _device_memory(self) -> float:
        return 0.0 if self._loaded is None else float(self._loaded.pair.runner.memory_bytes())


def _traces(endpoint: str | None) -> "Traces | None":
    """What sends traces to `endpoint`. Raises SettingsError where what it needs is missing."""
    if endpoint is None:
        return None
    try:
        otlp = importlib.import_module("telemetry.otlp")
    except ImportError as problem:
        raise SettingsError(
            f"otel_endpoint={endpoint}: traces need the extra otel ({problem}); "
            "install fencepost[otel]"
        ) from None
    traces: Traces = otlp.Traces(endpoint, version=version())
    return traces


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _log_header(settings: Settings, loaded: "Loaded") -> LogHeader:
    capabilities = loaded.pair.runner.capabilities()
    draft = capabilities.draft
    return LogHeader(
        target=settings.names[0],
        draft=None if draft is None else _model_name(draft),
        dtype=capabilities.target.dtype,
        layout=loaded.config.layout.value,
        server_version=version(),
        started=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


def _model_name(model: ModelIdentity) -> str:
    """A repository's name, or a folder's own name without the way to it."""
    return Path(model.name).name if Path(model.name).is_absolute() else model.name


def _listen(settings: Settings) -> socket.socket:
    """A bound socket. Raises SettingsError naming host and port."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as problem:
        raise SettingsError(f"host={settings.host}, port={settings.port}: {problem}") from None
