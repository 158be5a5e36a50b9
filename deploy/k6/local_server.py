"""Runs `fencepost serve` on a free loopback port for as long as a block lasts; knows no load."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

__all__ = ["NotServing", "local_server"]

_PATIENCE = 60
_ANNOUNCED = " at http://"


class NotServing(Exception):
    """The server ended before it served; its own words are on stderr."""


@contextmanager
def local_server(
    flags: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Its address, once it takes requests. Raises NotServing.

    `environment` replaces that of this process.
    """
    command = [sys.executable, "-m", "server.cli", "serve", "--port", "0", *flags]
    process = subprocess.Popen(  # noqa: S603 - our own command
        command, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield _address(process)
    finally:
        process.terminate()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _address(process: "subprocess.Popen[str]") -> str:
    """What the server says when it is ready. Blocks until it does or ends."""
    for line in process.stdout or ():
        if _ANNOUNCED in line:
            return "http://" + line.rpartition(_ANNOUNCED)[2].strip()
    raise NotServing(f"fencepost serve ended with status {process.wait()}")
