"""Each planted fault is found under its heading, on its line."""

import copy
import json

import pytest

from telemetry.explain_text import as_text
from tests.oracles.rig import request
from tests.telemetry.logs import Planted, encoded, lines_of, mixed_log, of, report_of, served

SAMPLING, POSITION, COMMIT = "sampling mismatch", "position mismatch", "commit"


@pytest.fixture(scope="module")
def log():
    return mixed_log()


@pytest.fixture(scope="module")
def planted(log):
    assert report_of(log).status == 0
    return Planted(log)


def last(**changes):
    return lambda records: records[-1].update(changes)


def first(**changes):
    return lambda records: records[0].update(changes)


def every(**changes):
    return lambda records: [record.update(changes) for record in records]


def flip(records):
    records[-1]["accepted"] = not records[-1]["accepted"]


def refuse_first(records):
    half = records[0]["q_prob"] / 2
    records[0].update(p_prob=half, accept_ratio=0.5, uniform=0.75, accepted=False)


def accept_last(records):
    records[-1].update(uniform=0.0, accepted=True)
    grow("committed_token_count")(records)


def nearly(name):
    """A number that is off by a thousandth of itself."""

    def change(records):
        records[0][name] *= 0.999

    return change


def grow(name, by=1):
    def change(records):
        for record in records:
            record[name] += by

    return change


def tail(**changes):
    return lambda records: records[-1]["unreached"][0].update(changes)


FAULTS = [
    ("token", 1, nearly("accept_ratio"), SAMPLING, "ratio"),
    ("token", 1, last(accept_ratio=1.0), SAMPLING, "ratio"),
    ("token", 1, last(accept_ratio=None), SAMPLING, "ratio"),
    ("token", 1, last(uniform=1.0), SAMPLING, "uniform"),
    ("token", 1, last(uniform=-0.25), SAMPLING, "uniform"),
    ("token", 1, last(uniform=None), SAMPLING, "uniform"),
    ("token", 1, last(uniform=0.0), SAMPLING, "decision"),
    ("token", 1, flip, SAMPLING, "decision"),
    ("token", 2, first(accepted=False), SAMPLING, "decision"),
    ("token", 1, last(q_prob=0.0), SAMPLING, "zero_q"),
    ("token", 2, first(p_prob=0.0, accept_ratio=0.0), SAMPLING, "zero_p"),
    ("token", 1, last(q_prob=1.5), SAMPLING, "probability"),
    ("token", 1, last(p_prob=None), SAMPLING, "probability"),
    ("token", 1, last(correction_distribution_id="target"), SAMPLING, "law"),
    ("token", 1, last(correction_scale=0.5), SAMPLING, "law"),
    ("block", 2, nearly("reach"), SAMPLING, "ratio"),
    ("block", 1, last(accept_ratio=1.5), SAMPLING, "ratio"),
    ("block", 1, flip, SAMPLING, "decision"),
    ("block", 1, last(uniform=1.0), SAMPLING, "uniform"),
    ("block", 1, last(q_prob=0.0), SAMPLING, "zero_q"),
    ("block", 1, tail(accept_ratio=0.9, reach=0.95, uniform=0.0), SAMPLING, "decision"),
    ("block", 1, last(correction_scale=0.123), SAMPLING, "law"),
    ("block", 1, last(unreached=[]), POSITION, "reach"),
    ("greedy", 1, flip, SAMPLING, "zero_p"),
    ("greedy", 2, first(accepted=False), SAMPLING, "decision"),
    ("greedy", 2, first(target_token=99), SAMPLING, "ratio"),
    ("greedy", 1, last(terminal_token=99), SAMPLING, "terminal"),
    ("greedy", 1, last(uniform=0.5), SAMPLING, "uniform"),
    ("shared_noise", 1, flip, SAMPLING, "decision"),
    ("shared_noise", 2, first(target_token=None), SAMPLING, "ratio"),
    ("shared_noise", 1, last(correction_distribution_id="residual"), SAMPLING, "law"),
    ("token", 2, last(place=7), POSITION, "place"),
    ("token", 2, first(position=1), POSITION, "position"),
    ("token", 2, first(k=8), POSITION, "k"),
    ("token", 2, first(proposer="ngram"), POSITION, "proposer"),
    ("token", 2, every(verified=0), POSITION, "reach"),
    ("token", 1, every(verified=200), POSITION, "reach"),
    ("token", 2, lambda records: records.pop(0), POSITION, "place"),
    ("token", 2, lambda records: records.pop(), POSITION, "reach"),
    ("token", 3, lambda records: records.pop(1), POSITION, "place"),
    ("token", 1, lambda records: records.extend(list(records)), POSITION, "duplicate"),
    ("greedy", 1, grow("position"), POSITION, "gap"),
    ("greedy", 1, grow("position", -1), POSITION, "overlap"),
    ("greedy", 1, every(generation=0), POSITION, "generation"),
    ("token", 2, refuse_first, POSITION, "prefix"),
    ("token", 1, accept_last, COMMIT, "verified"),
    ("token", 1, grow("committed_token_count"), COMMIT, "committed"),
    ("token", 1, last(terminal_token=None), COMMIT, "terminal"),
    ("token", 1, last(terminal_kind="bonus"), COMMIT, "terminal"),
    ("token", 2, first(terminal_kind="correction"), COMMIT, "terminal"),
    ("token", 1, every(cut=True), POSITION, "reach"),
]


@pytest.mark.parametrize(("policy", "length", "spoil", "heading", "kind"), FAULTS)
def test_a_planted_fault_is_named(planted, policy, length, spoil, heading, kind):
    index, old = planted.pick(of(policy, length))
    new = copy.deepcopy(old)
    spoil(new)
    report = report_of(planted.replaced(index, old, new))
    assert report.status == 1
    assert set(report.faults) == {(heading, kind)}
    assert all(finding.file == "-" for finding in report.first)
    # Line numbers go on over the second header; a whole round that is there twice is the later.
    assert index + 1 <= report.first[0].line <= index + len(new)
    spoilt = report.parts["all"].losses["commit: mismatch" if heading == COMMIT else heading]
    assert spoilt.rounds in {0, 1, 2}


def test_the_correction_is_not_the_refused_draft(planted):
    for policy in ("token", "block"):
        index, old = planted.pick(of(policy))
        new = [dict(record) for record in old]
        new[-1]["terminal_token"] = new[-1]["draft_token"]
        report = report_of(planted.replaced(index, old, new))
        assert set(report.faults) == {(SAMPLING, "terminal")}
        new[-1]["correction_distribution_id"] = "target_fallback"
        new[-1]["correction_scale"] = None
        assert report_of(planted.replaced(index, old, new)).status == 0


def test_a_round_that_is_missing_leaves_a_gap(planted):
    index, old = planted.pick(of("greedy"))
    report = report_of(planted.replaced(index, old, []))
    assert set(report.faults) == {(POSITION, "gap")}


def test_two_rounds_in_the_wrong_order(planted):
    rounds = [each for each in planted.rounds() if each[1][0]["request"] == 9]
    (one, first_records), (other, _) = rounds[:2]
    lines = planted.replaced(one, first_records, [])
    lines[other:other] = [encoded(record) for record in first_records]
    assert {heading for heading, _ in report_of(lines).faults} == {POSITION}


def test_drafts_that_a_stop_took(log):
    cuts = [records for _, records in Planted(log).rounds() if records[-1]["cut"]]
    assert cuts
    lost = sum(records[-1]["verified"] - len(records) for records in cuts)
    assert lost > 0
    assert report_of(log).parts["all"].losses["commit: cut"].drafts == lost


def test_a_stop_cannot_have_taken_more_drafts_than_there_were(planted):
    index, old = next(each for each in planted.rounds() if each[1][-1]["cut"])
    new = [record | {"verified": record["k"] + 1} for record in old]
    assert set(report_of(planted.replaced(index, old, new)).faults) == {(POSITION, "reach")}


@pytest.mark.parametrize(
    ("changes", "heading", "kind"),
    [
        ({"terminal_token": None}, COMMIT, "terminal"),
        ({"cut": True}, COMMIT, "terminal"),
        ({"committed_token_count": 2}, COMMIT, "committed"),
        ({"correction_distribution_id": "residual"}, SAMPLING, "law"),
        ({"k": 3}, POSITION, "reach"),
        ({"position": 77}, POSITION, "gap"),
    ],
)
def test_a_round_without_drafts_is_checked_too(changes, heading, kind):
    _, steps = served(request(1, (1, 2), k=0, max_tokens=6))
    lines = lines_of(steps)
    assert report_of(lines).parts["all"].plain == 6
    lines[3] = encoded(json.loads(lines[3]) | changes)
    report = report_of(lines)
    assert set(report.faults) == {(heading, kind)}
    assert report.first[0].line == 4


def test_dropped_records_excuse_a_gap_and_are_counted(planted):
    index, old = planted.pick(of("greedy"))
    note = {"record": "dropped", "count": len(old)}
    report = report_of(planted.replaced(index, old, [note]))
    assert (report.status, report.dropped) == (0, len(old))
    assert "dropped by the writer" in as_text(report)
