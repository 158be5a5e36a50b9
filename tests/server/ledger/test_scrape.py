"""Acceptance and costs read off a server's metrics page, from a file and over HTTP."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.plan import RoundTimings
from scheduler.stats import Policy
from server import cli
from telemetry.page import render
from tests.server.ledger.conftest import cells
from tests.telemetry.conftest import Board
from tests.telemetry.rounds import drafted, plain, step

SPENT = {
    "timings": RoundTimings(draft=0.004, verify=0.006, decide=0.001, forward=0.0),
    "round_seconds": 0.015,
    "schedule_seconds": 0.0015,
    "commit_seconds": 0.0005,
}


@pytest.fixture
def page():
    """The page of a server that ran five rounds of one request, one of them plain."""
    board = Board()
    # By token: position 1 tested 3 times and kept twice, position 2 twice and once, 3 never kept.
    for k, accepted in ((2, 0), (2, 1), (3, 2)):
        board.sink.step(step(drafted(k, accepted), **SPENT))
    board.sink.step(step(drafted(1, 1, policy=Policy.BLOCK), **SPENT))
    board.sink.step(step(plain(), **SPENT))
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
    assert "measured over 5 rounds that emitted, of 5, mean K 1.60" in shown
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
        (rounds, "fencepost_rounds_total, fencepost_round_rows or fencepost_round_k is missing"),
        (f"{page_file} --where policy=greedy", "no draft was tested with these labels"),
        (f"{page_file} --k 0..4", "argument --k: 4 is past the 3 positions that are known"),
    ):
        found = refusal(f"--from-metrics {arguments}")
        assert "argument --from-metrics: " in found or "argument --k" in found
        assert words in found


@pytest.mark.parametrize("zero", ["0.0", "0"])
def test_time_is_shared_out_among_the_rounds_that_emitted(ledger, tmp_path, zero):
    board = Board()
    silent = {"committed": 0, "terminal": None, "speculation": None}
    for _ in range(4):  # a verification of 15 ms behind each append of 5 ms
        board.sink.step(
            step(
                plain(prefilled=1, **silent),
                timings=RoundTimings(draft=0.0, verify=0.005, decide=0.0, forward=0.0),
                round_seconds=0.005,
            )
        )
        board.sink.step(step(drafted(2, 1), **SPENT))
    path = tmp_path / "retained.txt"
    page = render(board.registry)[0].decode()
    path.write_text(page.replace('kind="frontier",le="0.0"', f'kind="frontier",le="{zero}"'))
    found = json.loads(ledger(f"--from-metrics {path} --json"))["inputs"]
    assert (found["reading"]["rounds"], found["reading"]["emitting"]) == (8, 4)
    costs = found["costs"]
    assert costs["verify"] == pytest.approx(dict.fromkeys("012", 11.0))
    assert (costs["draft"], costs["other"]) == pytest.approx((2.0, 5.0))
    text = ledger(f"--from-metrics {path}")
    assert "measured over 4 rounds that emitted, of 8, mean K 2.00" in text
    assert "prefill makes them err high and tokens/s low" in text


def test_a_table_without_plain_decoding_is_not_mixed_with_measured_times(
    ledger, refusal, page_file
):
    table = f"--from-metrics {page_file} --k 1,2 --verify-ms 7,8"
    assert "argument --baseline-ms: needed: --verify-ms has no number for K = 0" in refusal(table)
    costs = json.loads(ledger(f"{table} --baseline-ms 5 --json"))["inputs"]["costs"]
    assert (costs["plain"], costs["verify"]) == (5.0, {"1": 7.0, "2": 8.0})


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('position="0"', 'place="0"', "fencepost_spec_accepted_total has no label 'position'"),
        ('position="0"', 'position="x"', "fencepost_spec_accepted_total: position 'x' is no numb"),
        ('_seconds_total{part="draft",rows="0-1"}', "_seconds_total", "has no label 'part'"),
        ("rounds_total 5.0", "rounds_total NaN", "fencepost_rounds_total: a counter cannot be nan"),
        ("rounds_total 5.0", "rounds_total +Inf", "fencepost_rounds_total: a counter cannot be in"),
        ("rounds_total 5.0", "rounds_total -5", "fencepost_rounds_total: a counter cannot be -5"),
        ("rounds_total 5.0", f"rounds_total {'9' * 400}", "rounds_total: a counter cannot be 999"),
        ("rounds_total 5.0", f"rounds_total 5.0 {'9' * 400}", "this is no metrics page"),
        ("round_k_sum 8.0", "round_k_sum NaN", "fencepost_round_k_sum: a counter cannot be nan"),
        ("round_k_sum 8.0", "round_k_sum 1e-320", "fencepost_round_k is missing or 0"),
        ("fencepost_round_rows_count", "other", "fencepost_round_rows or"),
        (
            'seconds_total{part="verify",rows="0-1"} 0.03',
            'seconds_total{part="verify",rows="0-1"} 0',
            "--verify-ms: need",
        ),
        ('{part="queue",rows="5-8"} ', '{part="queue",rows="5-8"} 9e15 ', "--other-ms: needed"),
        ('{part="draft",rows="5-8"} ', '{part="draft",rows="5-8"} 9e15 ', "--draft-ms: needed"),
    ],
)
def test_a_page_with_a_senseless_number_or_label_is_refused(refusal, page_file, old, new, words):
    page = page_file.read_text()
    assert old in page
    page_file.write_text(page.replace(old, new))
    assert words in refusal(f"--from-metrics {page_file}")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_damage_to_a_page_ends_in_a_traceback(page_file, page, capsys, data):
    """Either figures or status 2, whatever one line of ours became."""
    lines = [
        line
        for line in page.decode().splitlines()
        if line.startswith(("fencepost_spec_", "fencepost_round"))
        and not line.startswith("fencepost_spec_rounds")
        and not line.endswith(" 0.0")
    ]
    place = data.draw(st.integers(0, len(lines) - 1))
    name, _, value = lines[place].rpartition(" ")
    odd = ["NaN", "+Inf", "-1", "0", "1e-320", "1e308", "1e15", "9" * 400, "x", ""]
    damaged = [
        f"{name} {data.draw(st.sampled_from(odd))}",
        f"{name.partition('{')[0]} {value}",
        data.draw(st.text(alphabet='{}="\\, #x1', max_size=12)),
    ]
    lines[place] = data.draw(st.sampled_from(damaged))
    page_file.write_text("\n".join(lines))
    extra = data.draw(
        st.sampled_from([[], ["--baseline-ms", "5"], ["--k", "1", "--draft-ms", "1"]])
    )
    assert _status(["ledger", "--from-metrics", str(page_file), *extra]) in {0, 2}
    capsys.readouterr()


def _status(arguments):
    try:
        return cli.main(arguments)
    except SystemExit as ended:
        return ended.code
