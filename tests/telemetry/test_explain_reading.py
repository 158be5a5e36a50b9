"""Whatever a file holds is read in its order, counted or refused, in constant memory."""

import io
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry import explain as explaining
from telemetry.acceptance_log_lines import header_line
from telemetry.explain import Unreadable, explain
from telemetry.explain_records import Malformed, parse
from telemetry.explain_text import as_data, as_text
from tests.oracles.rig import request
from tests.telemetry.logs import (
    HEADER,
    Planted,
    Shelf,
    encoded,
    every_rule,
    lines_of,
    mixed_log,
    of,
    report_of,
    served,
)


@pytest.fixture(scope="module")
def log():
    return mixed_log()


def test_rotated_files_are_read_in_the_order_of_writing(tmp_path):
    _, steps = served(*every_rule(max_tokens=40))
    files = Shelf(tmp_path, limit=9000, kept=50).keep(steps)
    assert len(files) > 3
    reports = [explain(names, io.BytesIO()) for names in (files, files[::-1], sorted(files))]
    assert all(report.status == 0 for report in reports)
    assert reports[0] == reports[1] == reports[2]
    assert reports[0].requests == 8
    whole = report_of(lines_of(steps))
    assert reports[0].parts == whole.parts
    without = explain([files[0], *files[2:]], io.BytesIO())
    assert without.status == 0
    assert without.records < whole.records


def test_a_file_is_not_counted_twice(tmp_path):
    _, steps = served(*every_rule(max_tokens=40))
    files = Shelf(tmp_path, limit=9000, kept=50).keep(steps)
    copied = tmp_path / "copy"
    copied.write_bytes(b"".join(Path(name).read_bytes() for name in files[1:3]))
    for names in ([*files, files[2]], [files[0]] * 2, [str(copied), files[1]]):
        with pytest.raises(Unreadable, match=r"file \d+ of a run, read already in "):
            explain(names, io.BytesIO())
    whole = b"".join(Path(name).read_bytes() for name in [*files, files[0]])
    with pytest.raises(Unreadable, match=r"-: file \d+ of a run, read already in -"):
        explain(["-"], io.BytesIO(whole))


def test_a_second_run_starts_afresh():
    _, steps = served(request(1, (1, 2)))
    lines = lines_of(steps)
    later = header_line(HEADER, 0).replace(b"2026-11-30", b"2026-12-01")
    report = report_of([*lines, later, *lines[1:]])
    assert (report.status, report.runs, report.requests) == (0, 2, 2)


def test_malformed_lines_are_counted_and_shown(log):
    bad = [b"{\n", b"[1]\n", b"\xff\xfe\n", b'{"record":"what"}\n', b"\n", b'{"record":[]}\n']
    report = report_of([*log, *bad])
    assert (report.status, report.malformed) == (1, len(bad))
    assert [finding.line for finding in report.first] == [len(log) + n for n in range(1, 7)]
    shown = as_text(report)
    assert "MALFORMED  6 lines" in shown
    assert f"-:{len(log) + 1}: malformed (line): not JSON" in shown


def test_a_malformed_line_is_one_finding_wherever_it_stands(log):
    """Neither its round nor the next one of the request is blamed for it or counted as lost."""
    whole = report_of(log).parts["all"]
    for index in range(1, len(log)):
        if json.loads(log[index])["record"] == "header":
            continue
        for lines in (
            [*log[:index], b"{\n", *log[index + 1 :]],
            [*log[:index], b"{\n", *log[index:]],
        ):
            report = report_of(lines)
            assert [(each.line, each.heading) for each in report.first] == [
                (index + 1, "malformed")
            ]
            assert (report.status, report.malformed) == (1, 1)
            assert report.parts["all"].losses.keys() <= whole.losses.keys()
            rounds = sum(law.rounds for law in report.parts["all"].laws.values())
            assert sum(law.rounds for law in whole.laws.values()) - rounds in {0, 1, 2}


def test_a_fault_after_a_malformed_line_is_still_found(log):
    planted = Planted(log)
    index, old = planted.pick(of("token", 2))
    new = [old[0] | {"k": old[0]["k"] + 1}, *old[1:]]
    lines = planted.replaced(index, old, new)
    lines.insert(index, b"{\n")
    assert set(report_of(lines).faults) == {("position mismatch", "k")}
    # Only one round can have been torn by it.
    before = next(n for n, each in planted.rounds() if n + len(each) == index)
    lines = planted.replaced(index, old, old[1:])
    lines[before] = b"{\n"
    assert set(report_of(lines).faults) == {("position mismatch", "place")}


def test_a_line_that_goes_on_and_on_is_one_malformed_line(log):
    report = report_of([*log, b"x" * (1 << 20) + b"\n", b"{\n"])
    assert report.malformed == 2
    assert [finding.line for finding in report.first] == [len(log) + 1, len(log) + 2]


def test_a_last_line_that_was_not_finished_is_left_out(log):
    for cut in (1, 40, 200):
        report = report_of([*log[:-1], log[-1][:-cut]])
        assert (report.status, report.malformed) == (0, 0)
        assert report.unfinished == (cut > 1)
        assert ("not finished" in as_text(report)) == (cut > 1)


GOOD = json.loads(
    """{"record": "position", "round_id": 1, "request": 1, "generation": 1, "position": 5,
    "place": 1, "k": 1, "policy": "token", "proposer": "ngram", "domain": "other", "verified": 0,
    "committed_token_count": 1, "cut": false, "draft_token": 3, "target_token": null,
    "q_prob": 1.0, "p_prob": 0, "accept_ratio": 0.0, "uniform": 0.5, "reach": null,
    "accepted": false, "terminal_kind": "correction", "terminal_token": 4,
    "correction_distribution_id": "residual", "correction_scale": null, "unreached": []}"""
)


@pytest.mark.parametrize(
    "changes",
    [
        {"round_id": "1"},
        {"round_id": -1},
        {"request": True},
        {"k": 1 << 40},
        {"place": None},
        {"policy": "typical"},
        {"accepted": 1},
        {"cut": None},
        {"q_prob": "much"},
        {"q_prob": False},
        {"p_prob": 10**400},
        {"terminal_kind": "magic"},
        {"unreached": [1]},
        {"unreached": {}},
        {"domain": 5},
    ],
)
def test_a_field_of_another_kind_is_malformed(changes):
    assert parse(encoded(GOOD)).draft_token == 3
    with pytest.raises(Malformed, match=next(iter(changes))):
        parse(encoded(GOOD | changes))


@pytest.mark.parametrize("missing", sorted(set(GOOD) - {"record", "prefix"}))
def test_a_field_that_is_missing_is_malformed(missing):
    record = {name: value for name, value in GOOD.items() if name != missing}
    with pytest.raises(Malformed, match=f"{missing} is missing"):
        parse(encoded(record))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@given(SCALARS | st.lists(SCALARS), st.sampled_from(sorted(GOOD)))
@settings(deadline=None, max_examples=150)
def test_no_value_breaks_the_reader(value, name):
    report = report_of([header_line(HEADER, 0), encoded(GOOD | {name: value})])
    assert report.status in {0, 1}
    assert as_text(report)
    assert json.dumps(as_data(report))


@pytest.mark.parametrize(
    "text", [b"", b"no log\n", b'{"record":"dropped","count":1}\n', b"\x1f\x8b"]
)
def test_what_is_no_log_is_unreadable(tmp_path, text):
    path = tmp_path / "x"
    path.write_bytes(text)
    with pytest.raises(Unreadable, match="no acceptance log"):
        explain([str(path)], io.BytesIO())


def test_another_schema_or_no_file_is_unreadable(tmp_path):
    newer = header_line(HEADER, 0).replace(b'"schema":1', b'"schema":2')
    with pytest.raises(Unreadable, match="schema=2"):
        report_of([newer])
    with pytest.raises(Unreadable, match="No such file"):
        explain([str(tmp_path / "none")], io.BytesIO())
    with pytest.raises(Unreadable, match="directory"):
        explain([str(tmp_path)], io.BytesIO())


class Endless(io.RawIOBase):
    """A log of `count` requests with two tokens each, made while it is read."""

    def __init__(self, count):
        self._left = iter(range(count))
        self._pending = header_line(HEADER, 0)
        ending = {"terminal_kind": "plain", "correction_distribution_id": "target"}
        self._plain = GOOD | {"record": "plain", "k": 0} | ending

    def readable(self):
        return True

    def readinto(self, buffer):
        if not self._pending:
            number = next(self._left, None)
            if number is None:
                return 0
            one = self._plain | {"request": number, "domain": f"d{number}"}
            two = one | {"round_id": 2, "generation": 2, "position": 6}
            self._pending = encoded(one) + encoded(two)
        taken = self._pending[: len(buffer)]
        self._pending = self._pending[len(taken) :]
        buffer[: len(taken)] = taken
        return len(taken)


def test_memory_does_not_grow_with_the_log(monkeypatch):
    monkeypatch.setattr(explaining, "_OPEN_REQUESTS", 50)
    monkeypatch.setattr(explaining, "_PARTS", 20)

    def peak(count):
        tracemalloc.start()
        try:
            report = explain(["-"], io.BufferedReader(Endless(count)), "domain")
            assert (report.records, report.requests, report.status) == (2 * count, count, 0)
            assert len(report.parts) == 21
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(100)
    assert peak(1600) < 1.2 * peak(200)
