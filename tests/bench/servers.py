"""Starts a server of the OpenAI protocol as a process of its own, waits for it, and ends it.

It knows commands and processes. It knows no models, loads or figures.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import httpx
import psutil

_POLL_SECONDS = 0.5
_LAST_WORDS = 2000
_END_SECONDS = 20
_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How a server is started; `--port N` is added. `ready` answers 200 once models are loaded."""

    name: str
    command: tuple[str, ...]
    ready: str
    environment: Mapping[str, str] = field(default_factory=dict)


class ServerEnded(RuntimeError):
    """A server ended by itself, or took too long to load its models; with what it said last."""


@asynccontextmanager
async def running(server: Server, limit: float) -> AsyncIterator[str]:
    """The address of a server that is ready. Raises ServerEnded when it is not in `limit` s.

    In the end it and all that it started are gone: also where SIGTERM ends the task that runs it.
    """
    _cancel_when_terminated()
    port = _free_port()
    with TemporaryFile() as log:
        process = _start(server, port, log)
        url = f"http://127.0.0.1:{port}"
        try:
            await _wait(process, f"{url}{server.ready}", limit, log, server.name)
            yield url
        finally:
            await asyncio.to_thread(_end, process)


def library_of(python: str, name: str) -> Path | None:
    """A shared library that a package put below the prefix of an interpreter."""
    prefix = Path(python).absolute().parents[1]
    return next(iter(sorted((prefix / "lib").glob(f"{name}*"))), None)


def say(text: str) -> None:
    """Progress, on standard error."""
    sys.stderr.write(f"bench: {text}\n")


def _cancel_when_terminated() -> None:
    """Have SIGTERM cancel this task, so that what it opened is closed. One task of a loop only."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def _start(server: Server, port: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*server.command, "--port", str(port)],
        env=os.environ | dict(server.environment),
        stdout=log,
        stderr=subprocess.STDOUT,
        # A group of its own: a server's own processes may outlive it.
        start_new_session=True,
    )


async def _wait(
    process: subprocess.Popen[bytes], url: str, limit: float, log: IO[bytes], name: str
) -> None:
    end = time.monotonic() + limit
    async with httpx.AsyncClient(timeout=2) as client:
        while time.monotonic() < end and process.poll() is None:
            try:
                if (await client.get(url)).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(_POLL_SECONDS)
    log.seek(0)
    told = log.read()[-_LAST_WORDS:].decode("utf-8", "replace")
    raise ServerEnded(f"{name} is not ready (status {process.poll()}):\n{told}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # SIGKILL returns before those that it is sent to have ended.
    end = time.monotonic() + _END_SECONDS
    while _lives(process.pid) and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)


def _lives(group: int) -> bool:
    """Whether a process of a group still runs; one that nobody has waited for does not."""
    for each in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            if os.getpgid(each.pid) == group and each.info["status"] != psutil.STATUS_ZOMBIE:
                return True
    return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port
