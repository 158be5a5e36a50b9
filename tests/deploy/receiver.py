"""Prometheus on a free loopback port, for as long as a block lasts."""

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_ADDRESS = re.compile(r'msg="Listening on" address=(\S+)')
_READY = "Server is ready to receive web requests"


@contextmanager
def receiver(prometheus: Path, folder: Path) -> Iterator[str]:
    """The address of one that scrapes nothing and takes remote writes; it writes in `folder`."""
    config = folder / "prometheus.yml"
    config.write_text("{}", encoding="utf-8")
    flags = [
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.enable-remote-write-receiver",
    ]
    with running(prometheus, flags) as url:
        yield url


@contextmanager
def running(prometheus: Path, flags: Sequence[str]) -> Iterator[str]:
    """The address of one with these flags, once it is ready. Raises RuntimeError if it ends."""
    command = [prometheus, *flags, "--web.listen-address=127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield f"http://{_address(process)}"
    finally:
        process.terminate()
        process.communicate()


def _address(process: "subprocess.Popen[str]") -> str:
    address = None
    for line in process.stderr or ():
        found = _ADDRESS.search(line)
        address = found[1] if found else address
        if _READY in line and address is not None:
            return address
    raise RuntimeError("prometheus ended before it was ready")
