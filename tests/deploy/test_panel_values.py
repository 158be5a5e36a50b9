"""Panels' queries over counters whose truth is known by hand, evaluated by Prometheus' own tool."""

import subprocess

import pytest
import yaml

from deploy.dashboards.boards import BOARDS
from tests.deploy.observed import filled
from tests.deploy.series import RULES
from tests.oracles.tools import find_tool

HERE = {"job": "fencepost", "instance": "a", "track": "stable"}
STEP = 15

# 250 rounds of requests each 15 s. 100 with K = 2 and acceptance 0.6 at both positions: A is 0, 1
# and 2 in 40, 24 and 36 of them, and E[G] is 1.96. 50 with K = 1, all accepted, of which 10 end at
# a stop. 100 without a draft.
ROUNDS = {
    ("2", "0", "correction"): 40,
    ("2", "1", "correction"): 24,
    ("2", "2", "bonus"): 36,
    ("1", "1", "bonus"): 40,
    ("1", "1", "stop"): 10,
    ("0", "0", "plain"): 100,
}
POSITIONS = {
    "spec_proposed_total": (150, 100),
    "spec_verified_total": (150, 100),
    "spec_reached_total": (150, 60),
    "spec_accepted_total": (110, 36),
    "spec_acceptance_mass_total": (75, 30),
    "spec_acceptance_base_total": (150, 60),
}
COUNTERS = [
    *(
        ("spec_rounds_total", {"k": k, "accepted": a, "terminal": terminal}, count)
        for (k, a, terminal), count in ROUNDS.items()
    ),
    *(
        (name, {"position": str(position)}, count)
        for name, counts in POSITIONS.items()
        for position, count in enumerate((*counts, 0))
    ),
    ("round_k_sum", {}, 250),
    ("round_k_count", {}, 250),
    # Committed: 286 of rounds with a draft, 100 of plain ones, 14 first tokens of prefills.
    ("tokens_committed_total", {"model": "m"}, 400),
    ("tokens_goodput_total", {"model": "m"}, 300),
    *(
        ("request_slo_total", {"outcome": outcome}, count)
        for outcome, count in (("met", 12), ("ttft_miss", 4), ("tpot_miss", 2), ("error", 2))
    ),
    *(
        ("round_seconds_total", {"part": part, "rows": rows}, seconds)
        for part, rows, seconds in (
            ("verify", "1-8", 2),
            ("verify", "9-16", 4),
            ("draft", "1-8", 1.5),
            ("commit", "9-16", 0.5),
        )
    ),
    ("forward_seconds_total", {}, 6),
    # A quarter of the calls are refused and a tenth fail; probes of a replica that loads do not.
    *(
        ("http_requests_total", {"route": route, "status": status}, count)
        for route, status, count in (
            ("generation", "2xx", 13),
            ("generation", "503", 5),
            ("generation", "5xx", 2),
            ("other", "503", 30),
        )
    ),
    ("controller_plain_seconds_total", {}, 9),
    ("controller_round_seconds_total", {}, 6),
    ("controller_predicted_plain_seconds_total", {}, 10),
    ("controller_predicted_seconds_total", {}, 5),
    ("controller_committed_tokens_total", {}, 360),
    ("controller_predicted_tokens_total", {}, 400),
    *(
        ("request_ttft_seconds_bucket", {"speculation": "on", "le": le}, count)
        for le, count in (("0.1", 10), ("0.2", 20), ("+Inf", 20))
    ),
]

# (dashboard, panel, number of the query, expected values by the labels that stay)
EXPECTED = [
    ("acceptance", "Acceptance at position 0", 0, {"": 110 / 150}),
    ("acceptance", "Acceptance by position", 0, {"position=0": 110 / 150, "position=1": 0.6}),
    ("acceptance", "Survival by position", 0, {"": 110 / 150}),
    ("acceptance", "Survival by position", 1, {"": 110 / 150 * 0.6}),
    ("acceptance", "Survival by position", 2, {}),
    ("acceptance", "Acceptance by mass", 0, {"position=0": 0.5, "position=1": 0.5}),
    ("acceptance", "Tokens a drafting round, E[G]", 0, {"": 286 / 150}),
    ("acceptance", "Rounds with a draft", 0, {"": 0.6}),
    ("acceptance", "Drafts discarded", 0, {"": 1 - 146 / 250}),
    ("acceptance", "Mean draft length K", 0, {"": 1.0}),
    ("acceptance", "E[A] at each K", 0, {"k=1": 1.0, "k=2": 0.96}),
    (
        "acceptance",
        "Accepted drafts a round",
        0,
        {"accepted=0": 40 / 150, "accepted=1": 74 / 150, "accepted=2": 36 / 150},
    ),
    (
        "acceptance",
        "How rounds end",
        0,
        {
            "terminal=correction": 64 / 250,
            "terminal=bonus": 76 / 250,
            "terminal=stop": 10 / 250,
            "terminal=plain": 100 / 250,
        },
    ),
    (
        "acceptance",
        "Discarded drafts by position",
        0,
        {"position=0": 40 / STEP, "position=1": 64 / STEP, "position=2": 0.0},
    ),
    ("goodput", "Requests within SLO", 0, {"": 0.6}),
    ("goodput", "Goodput", 0, {"": 20.0}),
    ("goodput", "Committed tokens from drafts", 0, {"": 146 / 400}),
    ("goodput", "Time to first token, p95", 0, {"": 0.19}),
    ("goodput", "Gain over plain decoding", 0, {"": 1.5}),
    ("goodput", "Gain over plain decoding", 1, {"": 2.0}),
    ("goodput", "Forecasts held against rounds", 0, {"": 0.9}),
    ("goodput", "Forecasts held against rounds", 1, {"": 1.2}),
    ("goodput", "Time saved", 0, {"": 0.2}),
    (
        "goodput",
        "Cost shares",
        0,
        {"part=verify": 0.75, "part=draft": 0.1875, "part=commit": 0.0625},
    ),
    (
        "goodput",
        "Time a committed token",
        0,
        {"part=verify": 6 / 400, "part=draft": 1.5 / 400, "part=commit": 0.5 / 400},
    ),
    ("goodput", "Time by rows of the target call", 0, {"rows=1-8": 0.4375, "rows=9-16": 0.5625}),
    ("goodput", "Time inside model forwards", 0, {"": 0.75}),
    ("goodput", "K over time", 0, {"k=0": 0.4, "k=1": 0.2, "k=2": 0.4}),
    ("goodput", "Mean K, chosen and published", 2, {"": 250 / 150}),
    ("operations", "Failed answers", 0, {"": 0.1}),
    ("operations", "Failed answers by track", 0, {"track=stable": 0.1}),
    ("operations", "Refused requests", 0, {"instance=a": 0.25}),
    ("operations", "Acceptance at position 0 by track", 0, {"track=stable": 110 / 150}),
    ("operations", "Requests within SLO by track", 0, {"track=stable": 0.6}),
    ("operations", "Gain over plain decoding by track", 0, {"track=stable": 1.5}),
]


@pytest.fixture(scope="module")
def promtool():
    return find_tool("promtool")


def expression(board, title, number):
    (panel,) = (
        panel
        for each in BOARDS
        if each.uid == f"fencepost-{board}"
        for panel in each.panels
        if panel.title == title
    )
    return filled(panel.queries[number].expr).replace("[20s]", "[1m]")


def series():
    """Constant growth, from 0."""
    for name, labels, growth in COUNTERS:
        inner = ",".join(f'{key}="{value}"' for key, value in (HERE | labels).items())
        yield {"series": f"fencepost_{name}{{{inner}}}", "values": f"0+{growth}x60"}


def sample(labels, value):
    pairs = [pair.split("=") for pair in labels.split(",") if pair]
    inner = ",".join(f'{key}="{each}"' for key, each in pairs)
    return {"labels": f"{{{inner}}}", "value": round(value, 6)}


@pytest.mark.parametrize(("board", "title", "number", "expected"), EXPECTED)
def test_a_panel_shows_the_truth(promtool, tmp_path, board, title, number, expected):
    asked = {
        # Rounded, because the tool compares to the last bit. The name of a series goes with it.
        "expr": f"round({expression(board, title, number)}, 0.000001)",
        "eval_time": "10m",
        "exp_samples": [sample(labels, value) for labels, value in expected.items()],
    }
    test = {"interval": f"{STEP}s", "input_series": list(series()), "promql_expr_test": [asked]}
    path = tmp_path / "test.yml"
    content = {"rule_files": [str(RULES / "recording.yml")], "evaluation_interval": "15s"}
    path.write_text(yaml.safe_dump(content | {"tests": [test]}), "utf-8")
    command = [promtool, "test", "rules", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
