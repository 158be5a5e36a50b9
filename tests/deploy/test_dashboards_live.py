"""Every panel's query and every rule on a real Prometheus, over a real server that has work."""

import os
import subprocess
import time
from dataclasses import dataclass

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.dashboards.boards import BOARDS
from deploy.k6.local_server import local_server
from tests.deploy.mixed_load import load
from tests.deploy.observed import Observed, filled, observed
from tests.deploy.series import DEPLOY
from tests.oracles.tools import find_tool

FLAGS = (
    *("--profile-seconds", "1", "--cost-cache", "none", "--threads", "1"),
    *("--slo-ttft-ms", "60000", "--slo-tpot-ms", "60000"),
)
TURNS = 2
PANELS = [
    pytest.param(panel, id=f"{board.uid.removeprefix('fencepost-')}: {panel.title}")
    for board in BOARDS
    for panel in board.panels
]


@dataclass(frozen=True)
class Watched:
    """What was seen between two moments in which the server had work."""

    prometheus: Observed
    start: float
    end: float

    def over(self, expr):
        return self.prometheus.over(expr, self.start, self.end)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    prometheus, k6 = find_tool("prometheus"), find_tool("k6")
    folder = tmp_path_factory.mktemp("prometheus")
    with local_server(FLAGS) as url, observed(prometheus, url, folder) as running:
        # A rate needs a sample from before the load.
        running.until('fencepost_build_info{job="fencepost"}')
        start = time.time()
        load(url, TURNS)
        smoke(k6, url, running.url, folder)
        # The server is idle now: once Prometheus has its last count, it has all of them.
        last = sum(each.value for each in committed(url))
        running.until(f"sum(fencepost_tokens_committed_total) >= {last}")
        # Rules must have been evaluated over that.
        running.until(f"timestamp(instance:fencepost_spec_alpha:ratio_rate5m) > {time.time()}")
        yield Watched(running, start, time.time())


def committed(url):
    """The server's own count of published tokens, one a model."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    return next(f.samples for f in families if f.name == "fencepost_tokens_committed")


def smoke(k6, url, prometheus, folder):
    """The load script that a person would run, told to write to Prometheus."""
    command = [k6, "run", "--quiet", "--no-usage-report", "--out=experimental-prometheus-rw"]
    done = subprocess.run(
        [*command, DEPLOY / "k6" / "smoke.js"],
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "BASE_URL": url,
            "VUS": "2",
            "ITERATIONS": "4",
            "TTFT_MS": "60000",
            "TPOT_MS": "60000",
            "K6_PROMETHEUS_RW_SERVER_URL": f"{prometheus}/api/v1/write",
            "K6_PROMETHEUS_RW_PUSH_INTERVAL": "1s",
            "K6_PROMETHEUS_RW_TREND_STATS": "p(95),p(99),avg",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_shows_what_load_moves(panel, watched):
    answers = [watched.over(query.expr) for query in panel.queries]
    for query, series in zip(panel.queries, answers, strict=True):
        assert any(series), f"no data: {filled(query.expr)}"
    if panel.quiet is None:
        assert any(any(values) for series in answers for values in series), "all zero"


def test_no_rule_fails(watched):
    groups = watched.prometheus.ask("rules")["groups"]
    health = {
        rule["name"]: (rule["health"], rule.get("lastError")) for g in groups for rule in g["rules"]
    }
    assert set(health.values()) == {("ok", None)}


def test_a_healthy_server_gives_no_reason_to_alert(watched):
    """Not even pending. The others depend on how busy this machine is."""
    alerts = {each["labels"]["alertname"] for each in watched.prometheus.ask("alerts")["alerts"]}
    assert not alerts & {"ServerDown", "DeadDraft", "GoodputDrop", "KvExhausted", "FenceAnomaly"}


def test_variables_find_the_server(watched):
    found = {
        name: watched.prometheus.ask(f"label/{name}/values", **{"match[]": "fencepost_build_info"})
        for name in ("job", "instance", "track")
    }
    assert found["job"] == ["fencepost"]
    assert found["track"] == ["stable"]
    assert len(found["instance"]) == 1


def test_recorded_and_drawn_acceptance_agree(watched):
    """The rule over five minutes covers the whole load, as the counters themselves do; all of them
    grow from 0 over the same scrapes, so that the quotient of rates is that of the counts."""
    counts = [
        f'sum(fencepost_spec_{name}_total{{position="0"}})' for name in ("accepted", "reached")
    ]
    rule = 'instance:fencepost_spec_alpha:ratio_rate5m{position="0"}'
    (counted,) = watched.prometheus.at(" / ".join(counts), watched.end)
    (recorded,) = watched.prometheus.at(rule, watched.end)
    assert recorded == pytest.approx(counted, rel=1e-6)
