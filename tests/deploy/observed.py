"""Debian's Prometheus over one server, for as long as a block lasts, and what it answers."""

import math
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from tests.deploy.series import DEPLOY

_FOLDER = DEPLOY / "prometheus"
_PATIENCE = 30
_WINDOW = "20s"


@dataclass(frozen=True, slots=True)
class Observed:
    """A running Prometheus at `url`."""

    url: str

    def ask(self, path: str, **parameters: object) -> object:
        """The data of an answer. Raises AssertionError where Prometheus refuses."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=_PATIENCE)
        content = answer.json()
        assert content["status"] == "success", content
        return content["data"]

    def over(self, expr: str, start: float, end: float) -> list[list[float]]:
        """The values of each series of a panel's query in that time; NaN and Inf left out."""
        data = self.ask("query_range", query=filled(expr), start=start, end=end, step=1)
        series = ([float(text) for _, text in each["values"]] for each in data["result"])
        return [[value for value in values if math.isfinite(value)] for values in series]

    def at(self, expr: str, moment: float) -> list[float]:
        """The values of all series of a query at one moment."""
        data = self.ask("query", query=filled(expr), time=moment)
        return [float(each["value"][1]) for each in data["result"]]

    def until(self, expr: str) -> None:
        """Wait until a query answers with anything."""
        until(lambda: self.ask("query", query=filled(expr))["result"])


def filled(expr: str) -> str:
    """A panel's query with the variables that Grafana fills in."""
    chosen = expr.replace("$__rate_interval", _WINDOW)
    return chosen.replace("$job", ".+").replace("$instance", ".+")


@contextmanager
def observed(prometheus: Path, server: str, folder: Path) -> Iterator[Observed]:
    """The configuration that is committed, looking at `server` every second."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                prometheus,
                f"--config.file={_configured(server.removeprefix('http://'), address, folder)}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
                "--web.enable-remote-write-receiver",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            until(lambda: _ready(process, address))
            yield Observed(f"http://{address}")
        finally:
            process.terminate()
            process.wait(_PATIENCE)


def until(condition: Callable[[], object]) -> None:
    """Ask again and again: what is awaited is another process's progress."""
    ends = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < ends
        threading.Event().wait(0.1)


def _configured(server: str, own: str, folder: Path) -> Path:
    config = yaml.safe_load((_FOLDER / "prometheus.yml").read_text("utf-8"))
    config["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), "1s")
    config["rule_files"] = [str(_FOLDER / pattern) for pattern in config["rule_files"]]
    for job, address in zip(config["scrape_configs"], (server, own), strict=True):
        job["static_configs"][0]["targets"] = [address]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    return path


def _ready(process: subprocess.Popen, address: str) -> bool:
    assert process.poll() is None, "Prometheus ended"
    try:
        return httpx.get(f"http://{address}/-/ready").status_code == 200
    except httpx.TransportError:
        return False
