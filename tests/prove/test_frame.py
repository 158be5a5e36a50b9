"""The frame over toy proofs: every verdict shows, and only like is merged with like."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.bench.machine import describe_versions
from tests.prove import __main__ as command
from tests.prove import catalogue
from tests.prove.__main__ import main
from tests.prove.catalogue import MODULES, find_proofs
from tests.prove.proof import Finding, Proof, Scope
from tests.prove.report import MergeRefused, merged, read_report, write_report
from tests.prove.run import run_proof
from tests.prove.sources import product_digest
from tests.prove.table import aligned, markdown, render


def finding(**changes):
    fields = {"cases": 1200, "unit": "outcomes", "worst": 2.5e-16, "limit": "1e-12", "holds": True}
    return Finding(**(fields | changes))


def proof(name, run, oracle="some oracle"):
    return Proof(name=name, section="11.1", oracle=oracle, run=run)


@pytest.fixture(autouse=True)
def _a_revision(monkeypatch):
    """Also where the tests run outside a git checkout."""
    said = replace(describe_versions(), revision="0123456", changed=0)
    monkeypatch.setattr(command, "describe_versions", lambda: said)


class Counted:
    """A run that counts how often, and at what scope, it was asked."""

    def __init__(self, found):
        self.found = found
        self.scopes = []

    def __call__(self, scope):
        self.scopes.append(scope)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.fixture
def holding():
    return Counted(finding(note="one remark", rows=(("planted", "1e-3"), ("other",))))


@pytest.fixture
def failing():
    return Counted(finding(worst=0.25, holds=False))


@pytest.fixture
def toys(holding, failing):
    return (
        proof("good", holding),
        proof("bad", failing, oracle="another | oracle"),
        proof("broken", Counted(LookupError("no such row"))),
    )


@pytest.fixture
def files(toys, tmp_path, capsys):
    """Runs the command and gives (status, standard output, report)."""

    def _run(*flags, proofs=toys):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        status = main([*flags, "--json", str(path)], proofs)
        return status, capsys.readouterr().out, path

    return _run


def row_of(text, name):
    return next(line for line in text.splitlines() if line.startswith(f"{name}: ")).split()


def test_all_that_hold_give_success(files, toys):
    status, text, path = files("--only", "good")
    assert status == 0
    assert row_of(text, "good")[1:7] == ["some", "oracle", "1200", "outcomes", "2.5e-16", "1e-12"]
    assert "HOLDS" in text
    assert "FAILS" not in text
    assert "good: one remark" in text
    assert "1 of 1 proofs hold" in text
    assert "; 2 were not run" in text
    assert read_report(path).outcomes[0].finding == toys[0].run.found


def test_one_that_fails_gives_failure_and_stops_nothing(files):
    status, text, _ = files()
    assert status == 1
    assert row_of(text, "good")[-2] == "HOLDS"
    assert row_of(text, "bad")[-2] == "FAILS"
    assert row_of(text, "broken")[-2] == "FAILS"
    assert "broken: LookupError: no such row" in text
    assert "1 of 3 proofs hold" in text


@pytest.mark.parametrize("name", ["bad", "broken"])
def test_each_kind_of_failure_alone_gives_failure(files, name):
    assert files("--only", name)[0] == 1


@pytest.mark.parametrize(("flags", "scope"), [((), Scope.FAST), (("--full",), Scope.FULL)])
def test_the_scope_reaches_the_proof_and_the_data(files, holding, flags, scope):
    _, _, path = files(*flags, "--only", "good")
    assert holding.scopes == [scope]
    assert json.loads(path.read_text())["scope"] == scope.value


def test_details_are_the_rows(files):
    assert "planted" not in files("--only", "good")[1]
    assert files("--only", "good", "--detail")[1].endswith("== good\nplanted  1e-3\nother\n")


def test_listing_runs_nothing(toys, holding, capsys):
    assert main(["--list"], toys) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["name", "good", "bad", "broken"]
    assert holding.scopes == []


def test_an_unknown_name_is_refused(toys):
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "nothing"], toys)


def test_the_data_come_back_as_they_were(files, tmp_path):
    report = read_report(files()[2])
    assert {each.name for each in report.outcomes} == {"good", "bad", "broken"}
    assert report.threads == 1
    assert report.outcomes[0].finding.rows == (("planted", "1e-3"), ("other",))
    assert report.outcomes[2].error == "LookupError: no such row"
    write_report(report, tmp_path / "again" / "x.json")
    assert read_report(tmp_path / "again" / "x.json") == report


def test_a_file_that_is_no_report_is_named(toys, tmp_path, capsys):
    path = tmp_path / "other.json"
    for text in ("[", "{}", '{"outcomes": 3}'):
        path.write_text(text)
        assert main(["--merge", str(path)], toys) == 2
        assert "other.json: no report of proofs" in capsys.readouterr().err
    assert main(["--merge", str(tmp_path / "absent.json")], toys) == 2


def test_parts_make_a_whole_without_running_again(files, toys, holding, failing):
    _, _, first = files("--only", "bad")
    status, text, second = files("--only", "good", "--merge", str(first))
    assert (len(holding.scopes), len(failing.scopes), status) == (1, 1, 1)
    assert text.index("good: some") < text.index("bad: another")
    status, text, third = files("--merge", str(first), str(second), proofs=toys[:2])
    assert (len(holding.scopes), len(failing.scopes), status) == (1, 1, 1)
    assert [each.name for each in read_report(third).outcomes] == ["good", "bad"]
    assert "were not run" not in text


def test_what_is_run_now_wins_over_a_file(files, failing):
    _, _, first = files("--only", "bad")
    failing.found = finding()
    assert files("--only", "bad", "--merge", str(first))[0] == 0


def test_a_merge_runs_what_the_files_lack(files, toys, holding, failing):
    _, _, first = files("--only", "bad")
    files("--merge", str(first), proofs=toys[:2])
    assert (len(holding.scopes), len(failing.scopes)) == (1, 1)


@pytest.mark.parametrize("together", [True, False])
def test_files_may_be_merged_by_one_flag_or_by_several(files, toys, holding, failing, together):
    good, bad = (str(files("--only", name)[2]) for name in ("good", "bad"))
    flags = ["--merge", good, bad] if together else ["--merge", good, "--merge", bad]
    _, _, path = files(*flags, proofs=toys[:2])
    assert [each.name for each in read_report(path).outcomes] == ["good", "bad"]
    assert (len(holding.scopes), len(failing.scopes)) == (1, 1)


@pytest.mark.parametrize("place", ["python", "torch", "transformers"])
def test_a_merge_refuses_other_versions(files, toys, tmp_path, holding, capsys, place):
    report = read_report(files("--only", "bad")[2])
    other = replace(report, versions=replace(report.versions, **{place: "other"}))
    write_report(other, tmp_path / "other.json")
    assert main(["--merge", str(tmp_path / "other.json")], toys) == 2
    assert f"{place}: other in the file" in capsys.readouterr().err
    assert holding.scopes == []


@pytest.mark.parametrize("changes", [{"scope": Scope.FULL}, {"numpy": "1"}, {"product": "2"}])
def test_a_merge_refuses_another_scope_numpy_or_product(files, toys, changes):
    report = read_report(files("--only", "bad")[2])
    with pytest.raises(MergeRefused, match=next(iter(changes))):
        merged(report, [replace(report, **changes)], toys)


def test_a_merge_takes_another_revision_of_the_same_product(files, toys):
    report = read_report(files("--only", "bad")[2])
    later = replace(report, versions=replace(report.versions, revision="7654321"), outcomes=())
    assert merged(later, [report], toys).outcomes == report.outcomes


def test_the_product_is_every_source_file_by_name_and_content(tmp_path):
    (tmp_path / "scheduler" / "runtime").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    digests = set()
    for name, text in (
        ("scheduler/a.py", "1"),
        ("scheduler/a.py", "2"),
        ("scheduler/runtime/b.py", ""),
        ("scheduler/runtime/c.py", ""),
    ):
        (tmp_path / name).write_text(text, "utf-8")
        digests.add(product_digest(tmp_path))
    (tmp_path / "tests" / "t.py").write_text("", "utf-8")
    (tmp_path / "scheduler" / "notes.md").write_text("", "utf-8")
    digests.add(product_digest(tmp_path))
    assert len(digests) == 4


def test_markdown_shows_the_same_cells(files, toys, holding, capsys):
    _, _, path = files()
    holding.scopes.clear()
    assert main(["--markdown", str(path)], toys) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0] == "| oracle | cases | worst | limit | verdict | s |"
    assert lines[1] == "| --- | ---: | ---: | --- | --- | ---: |"
    assert lines[2].startswith("| good: some oracle | 1200 outcomes | 2.5e-16 | 1e-12 | HOLDS | ")
    assert lines[3].startswith("| bad: another \\| oracle | 1200 outcomes | 0.25 | 1e-12 | FAILS |")
    assert lines[4].startswith("| broken: some oracle |  |  |  | FAILS |")
    assert "* good: one remark" in lines
    assert "* broken: LookupError: no such row" in lines
    assert holding.scopes == []
    assert text == markdown(read_report(path)) + "\n"


def test_columns_keep_their_width():
    text = aligned([("a", "bb", "c"), ("long", "1", "cc")], right={1})
    assert text == "a     bb  c\nlong   1  cc"


def test_the_table_is_as_wide_as_its_widest_cells(files):
    report = read_report(files()[2])
    lines = render(report).split("\n\n")[1].splitlines()
    assert len(lines) == 4
    column = lines[0].index("verdict")
    assert {line[column : column + 5] for line in lines[1:]} == {"HOLDS", "FAILS"}


def test_seconds_come_from_the_clock(holding):
    times = iter((10.0, 12.5))
    outcome = run_proof(proof("good", holding), Scope.FAST, lambda: next(times))
    assert (outcome.seconds, outcome.error, outcome.holds) == (2.5, None, True)


def test_a_module_that_cannot_be_imported_is_a_failing_line():
    (broken,) = find_proofs(["tests.prove.no_such_module"])
    assert broken.name == "no_such_module"
    outcome = run_proof(broken, Scope.FAST)
    assert not outcome.holds
    assert "no_such_module" in outcome.error


def test_two_proofs_may_not_share_a_name(monkeypatch, toys):
    monkeypatch.setattr(catalogue, "_proofs_of", lambda _module: toys)
    with pytest.raises(ValueError, match="two proofs are called bad"):
        find_proofs(["one", "two"])


def test_every_module_with_proofs_is_in_the_catalogue():
    folder = Path(catalogue.__file__).parent
    having = {
        f"tests.prove.{path.stem}"
        for path in folder.glob("*.py")
        if any(line.startswith("PROOFS") for line in path.read_text("utf-8").splitlines())
    }
    assert having == set(MODULES)


def test_numbers_of_numpy_can_be_written(files):
    counted = Counted(finding(cases=np.int64(3), worst=np.float64(0.0), holds=np.bool_(True)))
    report = read_report(files(proofs=[proof("numpy", counted)])[2])
    assert report.outcomes[0].holds


def test_processes_of_their_own_find_proofs_by_name(capsys):
    named = ["coordinate", "admission"]
    flags = [flag for name in named for flag in ("--only", name)]
    assert main([*flags, "--workers", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines if "HOLDS" in line] == named
