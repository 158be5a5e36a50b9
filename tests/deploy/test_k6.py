"""The load scripts: measured against a peer that takes its own times, and against the server."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from deploy.k6.__main__ import SCRIPTS, main
from deploy.k6.local_server import NotServing, local_server
from tests.deploy.conftest import QUICK
from tests.deploy.peer import DONE, Answer, peer
from tests.deploy.receiver import receiver
from tests.oracles.tools import find_tool

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "k6"
MISSED = 99  # k6's exit status where a threshold is broken
# How fast this machine is decides nothing unless a test says so.
PATIENT = {"VUS": 1, "ITERATIONS": 1, "TTFT_MS": 60_000, "TPOT_MS": 60_000}


class Load:
    """Runs scripts and reads what they leave behind."""

    def __init__(self, k6, folder):
        self.k6 = k6
        self.summary = folder / "summary.json"

    def __call__(self, script, url, *, receiver=None, **settings):
        """(exit status, summary) of one run; `receiver` is told of all samples."""
        given = PATIENT | {"BASE_URL": url, "SUMMARY": self.summary} | settings
        flags = [part for name, value in given.items() for part in ("-e", f"{name}={value}")]
        command = [self.k6, "run", "--quiet", "--no-usage-report", *flags]
        # What the shell that runs these tests has set is not theirs.
        bare = {"PATH": os.environ["PATH"], "HOME": str(self.summary.parent)}
        if receiver is not None:
            command.append("--out=experimental-prometheus-rw")
            bare["K6_PROMETHEUS_RW_SERVER_URL"] = f"{receiver}/api/v1/write"
            bare["K6_PROMETHEUS_RW_TREND_STATS"] = "p(95)"
        command.append(FOLDER / f"{script}.js")
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=bare)
        self.text, self.words = done.stdout, done.stderr
        return done.returncode, json.loads(self.summary.read_text("utf-8"))


@pytest.fixture
def load(tmp_path):
    return Load(find_tool("k6"), tmp_path)


def always(**what):
    """Every call gets the same answer."""
    return lambda _: Answer(**what)


def gauges(aborts, waiting, stops=0):
    """The page of metrics of a server with these figures."""
    return (
        f'fencepost_requests_running{{engine="0"}} 0.0\nfencepost_requests_waiting {waiting}.0\n'
        f'fencepost_requests_total{{outcome="stop"}} {stops}.0\n'
        f'fencepost_requests_total{{outcome="abort"}} {aborts}.0\n'
    )


def metric(url, name):
    """Sum of a metric over all its series, read by other means than the scripts have."""
    page = httpx.get(f"{url}/metrics").text
    found = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", page, re.MULTILINE)
    return sum(map(float, found))


# ---- what one answer counts for ------------------------------------------------------------------


def test_times_are_those_of_the_first_and_the_last_byte(load):
    with peer(always(hold=0.06, pause=0.2, tokens=5)) as told:
        status, summary = load("smoke", told.url)
    assert status == 0
    ttft, tpot, e2e = (summary[f"llm_{name}_ms"]["max"] for name in ("ttft", "tpot", "e2e"))
    assert ttft >= 60
    assert e2e >= 260
    # Less than the pause by as much as the first byte was read late.
    assert tpot * 4 >= 100
    assert ttft + tpot * 4 == pytest.approx(e2e)


def test_tokens_and_acceptance_are_those_that_the_peer_sent(load):
    answers = [Answer(tokens=n + 1, acceptance=n or None) for n in range(4)]
    with peer(answers.__getitem__) as told:
        status, summary = load("smoke", told.url, ITERATIONS=4)
    assert status == 0
    assert (summary["answers"], summary["tokens"]) == (4, 1 + 2 + 3 + 4)
    assert summary["llm_acceptance_length"]["avg"] == pytest.approx((1 + 2 + 3) / 3)
    assert "level=error" not in load.words
    assert summary["llm_tpot_ms"]["count"] == 3  # one token alone has no pace
    assert summary["slo_share"] == 1


@pytest.mark.parametrize(
    ("answer", "failed", "truncated"),
    [
        (Answer(tail=[]), 1, 1),
        (Answer(tail=Answer().whole_tail()[:1]), 1, 1),
        (Answer(tail=[DONE]), 1, 0),
        (Answer(tail=[{"error": {"message": "the engine broke"}}, DONE]), 1, 0),
        (
            Answer(tail=[{"usage": {"completion_tokens": 3}, "error": {"message": "no"}}, DONE]),
            1,
            0,
        ),
        (Answer(tail=["cut off", DONE]), 1, 0),
        (Answer(status=503), 1, 0),
        (Answer(status=400), 1, 0),
    ],
)
def test_an_answer_that_is_not_whole_is_a_failure(load, answer, failed, truncated):
    with peer(lambda turn: answer if turn == 0 else Answer()) as told:
        status, summary = load("smoke", told.url, ITERATIONS=2)
    assert status == MISSED
    assert (summary["failed"], summary["truncated"], summary["answers"]) == (failed, truncated, 2)
    assert (summary["slo_share"], summary["tokens"], summary["passed"]) == (0.5, 5, False)


@pytest.mark.parametrize(("promise", "slow"), [("TTFT_MS", "hold"), ("TPOT_MS", "pause")])
def test_a_late_answer_is_whole_but_not_within_the_slo(load, promise, slow):
    with peer(always(tokens=2, **{slow: 0.1})) as told:
        status, summary = load("smoke", told.url, **{promise: 90})
        assert (status, summary["failed"], summary["slo_share"]) == (MISSED, 0, 0)
        broken = [rule for rule, ok in summary["thresholds"].items() if not ok]
        assert broken == ["llm_slo_good: rate>=0.95"]
        assert load("smoke", told.url)[0] == 0


def test_nothing_answered_is_nothing_passed(load):
    status, summary = load("smoke", "http://127.0.0.1:9", READY_SECONDS=0.1)
    assert status != 0
    assert not summary["passed"]
    assert not summary["thresholds"]["an answer came"]


# ---- what is asked -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "sent"), [("on", {"enabled": True}), ("off", {"enabled": False}), ("3", {"k": 3})]
)
def test_settings_reach_the_server(load, setting, sent):
    with peer(always()) as told:
        settings = {"SPECULATION": setting, "MODEL": "m", "TEMPERATURE": 0.5, "MAX_TOKENS": 9}
        slo = {"TTFT_MS": 700, "TPOT_MS": 70, "API_KEY": "secret"}
        status, _ = load("smoke", told.url, **settings, **slo, SEED=40, ITERATIONS=2)
    assert status == 0
    body = told.bodies[0]
    assert body["speculation"] == sent
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.5, 9)
    assert body["stream_options"] == {"include_usage": True}
    assert sorted(each["seed"] for each in told.bodies) == [40, 41]
    assert told.bodies[0]["messages"] != told.bodies[1]["messages"]
    wanted = {
        "x-slo-ttft-ms": "700",
        "x-slo-tpot-ms": "70",
        "authorization": "Bearer secret",
        "content-type": "application/json",
    }
    assert wanted.items() <= told.headers[0].items()


@pytest.mark.parametrize(
    ("name", "value"),
    [("RATE", "fast"), ("VUS", "1.5"), ("RATES", "4,2"), ("SPECULATION", "some"), ("STEP", "0")],
)
def test_a_setting_that_makes_no_sense_stops_the_run(name, value):
    command = [find_tool("k6"), "inspect", "-e", f"{name}={value}", FOLDER / "smoke.js"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert f"{name}={value}" in done.stderr


# ---- what each script does -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "executors"),
    [
        ("smoke", {"per-vu-iterations"}),
        ("rate", {"constant-arrival-rate"}),
        ("ramp", {"ramping-arrival-rate"}),
        ("soak", {"constant-vus"}),
        ("cancel", {"per-vu-iterations"}),
    ],
)
def test_k6_reads_each_script(script, executors):
    command = [find_tool("k6"), "inspect", FOLDER / f"{script}.js"]
    options = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert {each["executor"] for each in options["scenarios"].values()} == executors
    assert options["thresholds"]["llm_truncated"]


def test_scripts_are_those_that_the_driver_offers():
    scenarios = {path.stem for path in FOLDER.glob("*.js") if "scenarios:" in path.read_text()}
    assert scenarios == set(SCRIPTS)


def test_rate_takes_fractions_and_misses_when_iterations_are_dropped(load):
    with peer(always()) as told:
        status, summary = load("rate", told.url, RATE=7.5, DURATION="2s")
        assert (status, summary["dropped"]) == (0, 0)
        assert abs(summary["answers"] - 15) <= 1  # k6 counts the two ends of the time as it likes
    with peer(always(hold=1.0)) as told:
        status, summary = load("rate", told.url, RATE=20, DURATION="1s", MAX_VUS=1)
    assert status == MISSED
    assert summary["dropped"] > 0
    assert not summary["thresholds"]["dropped_iterations: count==0"]


def test_ramp_finds_the_last_rate_that_keeps_the_slo(load):
    # Steps of 1 s offer 10, 30 and 50 requests; what comes after the first 20 is refused.
    with peer(lambda turn: Answer(status=200 if turn < 20 else 503)) as told:
        status, summary = load("ramp", told.url, RATES="10,30,50", STEP=1, REST=1)
    assert status == 0
    first, second, third = summary["steps"]
    assert (first["rate"], first["slo_share"], third["slo_share"]) == (10, 1, 0)
    assert abs(first["answers"] - 10) <= 1  # nothing arrives between two steps
    assert 0 < second["slo_share"] < 0.95
    assert summary["knee"]["rate"] == 10
    assert summary["knee"]["tokens_per_second"] == 5 * first["answers"]
    assert summary["knee_seen"]
    assert sum(step["answers"] for step in summary["steps"]) == summary["answers"]


def test_ramp_without_a_knee_says_so(load):
    with peer(always()) as told:
        status, summary = load("ramp", told.url, RATES="5,10", STEP=1, REST=0)
        assert (status, summary["knee"]["rate"], summary["knee_seen"]) == (0, 10, False)
    with peer(always(status=503)) as told:
        status, summary = load("ramp", told.url, RATES="5,10", STEP=1, REST=0)
        assert (status, summary["knee"], summary["knee_seen"]) == (MISSED, None, True)


def test_soak_misses_when_memory_grows(load):
    with peer(always(), "process_resident_memory_bytes 1e+08\n") as told:
        status, summary = load("soak", told.url, DURATION="1s")
        assert (status, summary["llm_server_memory_ratio"]) == (0, 1)

        def answers(_):
            told.metrics = "process_resident_memory_bytes 1.3e+08\n"
            return Answer()

        told.answers = answers
        status, summary = load("soak", told.url, DURATION="1s")
        assert (status, summary["llm_server_memory_ratio"]) == (MISSED, 1.3)


@pytest.mark.parametrize(
    ("waiting", "aborts", "status"), [(0, 1, 0), (1, 1, MISSED), (0, 0, MISSED)]
)
def test_cancel_misses_when_something_stays_behind(load, waiting, aborts, status):
    with peer(always(hold=0.3), gauges(0, waiting)) as told:

        def answers(turn):
            told.metrics = gauges(aborts, waiting, turn + 1)
            return Answer(hold=0.3)

        told.answers = answers
        found, summary = load("cancel", told.url, CANCEL_MS=50, DRAIN_SECONDS=0.3)
    assert (found, summary["cancelled"]) == (status, 4)
    broken = [rule for rule, ok in summary["thresholds"].items() if not ok]
    assert broken == ["checks: rate==1"] * (status == MISSED)


# ---- the server ----------------------------------------------------------------------------------


def test_smoke_counts_what_the_server_counts(load, server):
    names = ("vllm:generation_tokens_total", "fencepost_requests_total")
    before = [metric(server, name) for name in names]
    status, summary = load("smoke", server, VUS=2, ITERATIONS=3, MAX_TOKENS=24)
    assert status == 0
    tokens, requests = (metric(server, name) - was for name, was in zip(names, before, strict=True))
    assert (summary["tokens"], summary["answers"]) == (tokens, requests) == (6 * 24, 6)
    assert summary["failed"] == 0
    assert 1 <= summary["llm_acceptance_length"]["avg"] <= 9


def test_without_speculation_nothing_is_drafted(load, server):
    before = metric(server, "fencepost_spec_proposed_total")
    _, summary = load("smoke", f"{server}/", SPECULATION="off", MAX_TOKENS=8)
    assert (summary["tokens"], summary["llm_acceptance_length"]) == (8, None)
    assert metric(server, "fencepost_spec_proposed_total") == before
    load("smoke", server, SPECULATION=2, MAX_TOKENS=8)
    assert metric(server, "fencepost_spec_proposed_total") > before


def test_a_storm_of_cancels_leaves_nothing_behind(load, server):
    status, summary = load("cancel", server, VUS=2, ITERATIONS=4, CANCEL_MS=200)
    assert status == 0, load.text + load.words
    assert summary["cancelled"] > 0
    assert summary["answers"] == 5 + 1
    assert metric(server, "fencepost_requests_running") == 0


def test_trends_reach_prometheus_in_milliseconds(load, tmp_path):
    with receiver(find_tool("prometheus"), tmp_path) as url, peer(always(hold=0.05)) as told:
        status, summary = load("smoke", told.url, receiver=url, ITERATIONS=3)
        assert status == 0, load.words
        reply = httpx.get(f"{url}/api/v1/query", params={"query": "k6_llm_ttft_ms_p95"})
    (series,) = reply.json()["data"]["result"]
    assert float(series["value"][1]) == pytest.approx(summary["llm_ttft_ms"]["p(95)"])
    assert series["metric"]["speculation"] == "on"


# ---- the driver ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_driver_loads_a_server_of_its_own_and_stops_it(tmp_path):
    find_tool("k6")
    summary = tmp_path / "summary.json"
    given = {"VUS": 1, "ITERATIONS": 1, "SUMMARY": summary, "TTFT_MS": 0.001}
    settings = [part for name, value in given.items() for part in ("-e", f"{name}={value}")]
    command = [sys.executable, "-m", "deploy.k6", "smoke", "--server", " ".join(QUICK), *settings]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == MISSED, done.stderr
    assert "BROKEN llm_slo_good" in done.stdout
    assert json.loads(summary.read_text("utf-8"))["answers"] == 1


def test_the_driver_loads_a_server_that_runs(capfd):
    find_tool("k6")
    with peer(always()) as told:
        assert main(["smoke", "--url", told.url, "-e", "VUS=1", "-e", "ITERATIONS=2"]) == 0
    assert len(told.bodies) == 2
    assert "2 answers" in capfd.readouterr().out


def test_the_driver_says_that_the_server_did_not_start(capfd):
    find_tool("k6")
    assert main(["smoke", "--server", "--k -1"]) == 2
    said = capfd.readouterr().err
    assert "cannot start: k=-1" in said
    assert "load: fencepost serve ended with status 2" in said


def test_a_local_server_is_gone_when_its_block_ends():
    with pytest.raises(NotServing), local_server(("--k", "-1")):
        pass
