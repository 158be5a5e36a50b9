"""Acceptance and costs read off a server's metrics page, from a file and over HTTP."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest

from scheduler.plan import RoundTimings
from scheduler.stats import Policy
from telemetry.page import render
from tests.server.ledger.conftest import cells
from tests.telemetry.conftest import Board
from tests.telemetry.rounds import drafted, plain, step


@pytest.fixture
def page():
    """The page of a server that ran five rounds of one request, one of them plain."""
    board = Board()
    spent = {
        "timings": RoundTimings(draft=0.004, verify=0.006, decide=0.001, forward=0.0),
        "round_seconds": 0.015,
        "schedule_seconds": 0.0015,
        "commit_seconds": 0.0005,
    }
    # By token: position 1 tested 3 times and kept twice, position 2 twice and once, 3 never kept.
    for k, accepted in ((2, 0), (2, 1), (3, 2)):
        board.sink.step(step(drafted(k, accepted), **spent))
    board.sink.step(step(drafted(1, 1, policy=Policy.BLOCK), **spent))
    board.sink.step(step(plain(), **spent))
    return render(board.registry)[0]


@pytest.fixture
def page_file(page, tmp_path):
    path = tmp_path / "metrics.txt"
    path.write_bytes(page)
    return path


@pytest.fixture
def site(page):
    """A live page, and one address where there is none."""

    class Site(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Site) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()


def test_profile_and_costs_come_from_a_page(ledger, page_file):
    found = json.loads(ledger(f"--from-metrics {page_file} --json"))
    inputs = found["inputs"]
    assert inputs["profile"] == pytest.approx([3 / 4, 1 / 2, 0.0])
    assert inputs["reading"]["rounds"] == 5
    assert inputs["reading"]["mean_k"] == pytest.approx(8 / 5)
    costs = inputs["costs"]
    assert costs["draft"] == pytest.approx(4.0 / 1.6)
    assert costs["verify"] == pytest.approx({"0": 6.0, "1": 6.0, "2": 6.0, "3": 6.0})
    assert costs["other"] == pytest.approx(5.0)
    assert costs["plain"] == pytest.approx(11.0)


def test_labels_choose_and_flags_win(ledger, page_file):
    text = ledger(
        f"--from-metrics {page_file} --where policy=token,proposer=draft_model --k 0..2 "
        "--draft-ms 1 --verify-ms 6+1k --other-ms 0 --baseline-ms 5"
    )
    assert "draft positions tested 3, 2, 1 times" in text
    # E[G] is 1, 5/3, 2 in 5, 8, 10 ms.
    assert [row[6] for row in cells(text)] == ["200.0", "208.3", "200.0"]


def test_a_live_page_is_read(ledger, site, page_file):
    shown = ledger(f"--from-metrics {site.url}/metrics")
    assert "measured over 5 rounds, mean K 1.60" in shown
    assert shown == ledger(f"--from-metrics {page_file}")


def test_pages_that_say_nothing_are_refused(refusal, site, page_file, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("# TYPE python_info gauge\npython_info 1.0\n")
    noise = tmp_path / "noise.txt"
    noise.write_text("{ what")
    page = page_file.read_text()
    rounds = tmp_path / "rounds.txt"
    rounds.write_text(page.replace("fencepost_rounds_total 5.0", "fencepost_rounds_total 0.0"))
    for arguments, words in (
        (f"{site.url}/nothing", "404"),
        ("http://127.0.0.1:1/metrics", "cannot read http://127.0.0.1:1/metrics"),
        (tmp_path / "none", "cannot read"),
        (other, "no draft was tested, so acceptance is unknown"),
        (noise, "no metrics page"),
        (rounds, "fencepost_rounds_total or fencepost_round_k is missing or 0"),
        (f"{page_file} --where policy=greedy", "no draft was tested with these labels"),
        (f"{page_file} --k 0..4", "argument --k: 4 is past the 3 positions that are known"),
    ):
        found = refusal(f"--from-metrics {arguments}")
        assert "argument --from-metrics: " in found or "argument --k" in found
        assert words in found
