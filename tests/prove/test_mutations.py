"""Planting on a toy product: what counts as noticed, what is named, and that nothing is left."""

import ast
import hashlib
import json
import os
import textwrap
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.prove import mutations, planting
from tests.prove.mutations import MUTATIONS, finding_of
from tests.prove.planting import (
    ROOT,
    TIME_LIMIT,
    BaselineFailed,
    Fate,
    Trial,
    fault,
    plot,
)
from tests.prove.proof import Scope

TOY = {
    "pyproject.toml": """
        [tool.pytest.ini_options]
        pythonpath = ["."]
        """,
    "scheduler/__init__.py": "",
    "scheduler/sums.py": '''
        """A toy of a product."""

        LIMIT = 9


        def total(a, b):
            if a > LIMIT:
                raise ValueError("too much")
            return a + b


        def idle(a):
            return a
        ''',
    "tests/__init__.py": "",
    "tests/test_sums.py": """
        import pytest

        from scheduler.sums import total


        def test_total():
            assert total(2, 3) == 5


        def test_refusal():
            with pytest.raises(ValueError):
                total(10, 1)


        def test_order():
            assert total(2, 1) > total(1, 1)


        @pytest.mark.skip
        def test_skipped():
            pass


        def test_wrong():
            assert total(1, 1) == 3
        """,
    "tests/test_hanging.py": """
        import signal

        from scheduler.sums import idle


        def test_hang():
            if idle(1) != 1:
                with open("door", "w"):
                    signal.pause()
        """,
}
SUMS = "scheduler/sums.py"
TOTAL, REFUSAL, ORDER = (
    f"tests/test_sums.py::test_{name}" for name in ("total", "refusal", "order")
)
HANG = "tests/test_hanging.py::test_hang"


def digests(folder):
    """What lies in a folder, byte for byte."""
    return {
        path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    for name, text in TOY.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())
    return folder


@pytest.fixture(scope="module")
def ground(source):
    with plot(source, preloaded=()) as ground:
        yield ground


def swap(old, new, *killers, file=SUMS):
    return fault(f"{old} becomes {new}", "", file, (old, new), *(killers or (TOTAL,)))


def trial(ground, old, new, *killers, first=True):
    planted = swap(old, new, *killers)
    return ground.run_trial(planted, planted.killers, first=first)


def test_a_failed_assertion_kills(ground):
    found = trial(ground, "a + b", "a - b")
    assert (found.fate, found.by) == (Fate.KILLED, (TOTAL,))
    assert "assert -1 == 5" in found.told


def test_a_refusal_of_the_product_kills(ground):
    found = trial(ground, "LIMIT = 9", "LIMIT = 1")
    assert (found.fate, found.by) == (Fate.KILLED, (TOTAL,))
    assert found.told == "ValueError: too much"


def test_a_refusal_that_does_not_come_kills(ground):
    assert trial(ground, "a > LIMIT", "a < -LIMIT", REFUSAL).by == (REFUSAL,)


def test_one_failure_is_enough_or_all_are_told(ground):
    asked = ("a + b", "b - a", TOTAL, ORDER)
    assert trial(ground, *asked).by == (TOTAL,)
    assert trial(ground, *asked, first=False).by == (TOTAL, ORDER)


def test_a_fault_that_nobody_sees_survives_and_is_named(ground):
    found = trial(ground, "return a\n", "return -a\n")
    assert found.fate is Fate.SURVIVED
    finding = finding_of([trial(ground, "a + b", "a - b"), found])
    assert (finding.worst, finding.limit, finding.holds) == (1.0, "0", False)
    assert finding.note.startswith("survived: return a")
    assert [row[2] for row in finding.rows] == [TOTAL, "survived"]


@pytest.mark.parametrize(
    ("new", "told"),
    [
        ("a +", "not collected: tests/test_sums.py: SyntaxError"),
        ("a + c", "crash: tests/test_sums.py::test_total: NameError: name 'c' is not defined"),
        ("a.b", "crash: tests/test_sums.py::test_total: AttributeError"),
        ("a + b[0]", "crash: tests/test_sums.py::test_total: TypeError"),
        ("[a][b]", "crash: tests/test_sums.py::test_total: IndexError"),
        (
            "a\n\n\ndef total(a, b):\n    raise ValueError(c)",
            "crash: tests/test_sums.py::test_total: NameError",
        ),
        ("a + b\n\n\nimport nothing", "not collected: tests/test_sums.py: ModuleNotFoundError: "),
        ("a + b\n\n\nimport os\n\nos._exit(3)", "the tests died"),
    ],
)
def test_a_mutant_that_does_not_run_is_named_and_no_kill(ground, new, told):
    found = trial(ground, "a + b", new)
    assert found.fate is Fate.BROKEN
    assert told in found.told
    assert finding_of([found]).note.startswith(f"broken: a + b becomes {new} ({told}")


@pytest.mark.parametrize(
    ("old", "times"), [("a * b", 0), ("LIMIT", 2), ("return a", 2)], ids=["absent", "twice", "part"]
)
def test_an_old_text_that_is_not_there_exactly_once_is_named(ground, old, times):
    found = trial(ground, old, "")
    assert found.fate is Fate.MISPLACED
    assert found.told == f"the old text stands {times} times in {SUMS}"
    assert not finding_of([found]).holds
    gone = ground.run_trial(swap("a", "b", file="scheduler/gone.py"), (TOTAL,), first=True)
    assert gone.fate is Fate.MISPLACED


def test_a_killer_that_is_not_there_is_no_kill(ground):
    found = trial(ground, "a + b", "a - b", "tests/test_sums.py::test_gone")
    assert found.fate is Fate.BROKEN
    assert "pytest ended with 4" in found.told


def test_a_fault_leaves_with_its_trial(ground, source):
    """Also one of the same length, which compiled files could hide."""
    before = digests(source)
    for new in ("a - b", "a + b", "a * b"):
        fates = trial(ground, "a + b", new).fate
        assert fates is (Fate.SURVIVED if new == "a + b" else Fate.KILLED)
        assert ground.check_baseline([TOTAL, REFUSAL, ORDER]) > 0
    assert digests(source) == before
    copied = digests(ground.tree)
    assert {name: copied[name] for name in before} == before


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ("wrong", "test_wrong: AssertionError"),
        ("skipped", "did not pass"),
        ("gone", "ended with 4"),
    ],
)
def test_a_killer_that_does_not_pass_without_faults_ends_it_all(ground, test, told):
    with pytest.raises(BaselineFailed, match=told):
        ground.check_baseline([TOTAL, f"tests/test_sums.py::test_{test}"])


def test_tests_that_run_another_product_say_nothing(ground, monkeypatch):
    monkeypatch.setattr(planting, "_COPIED", ("json",))
    with pytest.raises(BaselineFailed, match="the tests ran another json"):
        ground.check_baseline([TOTAL])
    assert trial(ground, "a + b", "a - b").fate is Fate.BROKEN
    assert trial(ground, "a + b", "b + a").fate is Fate.BROKEN


# --- what hangs ----------------------------------------------------------------------------------


@pytest.fixture
def door(ground):
    """A pipe that a hanging test holds open for as long as it lives."""
    path = ground.tree / "door"
    path.unlink(missing_ok=True)
    path.touch()
    return path


def test_a_mutant_that_hangs_is_killed_by_the_time_limit(ground, door, monkeypatch):
    monkeypatch.setattr(ground, "_limit", 3.0)
    found = trial(ground, "return a\n", "return -a\n", HANG)
    assert (found.fate, found.by) == (Fate.KILLED, (TIME_LIMIT,))
    assert trial(ground, "a + b", "a - b").by == (TOTAL,)


def test_a_hanging_child_goes_with_whoever_asked(source, tmp_path):
    with plot(source, preloaded=()) as ground:
        path = ground.tree / "door"
        os.mkfifo(path)
        sums = ground.tree / SUMS
        sums.write_text(sums.read_text().replace("return a\n", "return -a\n"))
        given = ground._process.stdin
        job = {"tree": str(ground.tree), "log": str(tmp_path / "log"), "ours": [], "tests": [HANG]}
        more = {"scratch": str(tmp_path / "scratch"), "seconds": 500, "first": True}
        given.write(json.dumps({**job, **more, "caches": False}).encode() + b"\n")
        given.flush()
        with path.open("rb") as held:  # opens when the test hangs
            given.close()
            assert held.read() == b""  # ends when the test is gone
        assert ground._process.wait(timeout=60) == 0
    assert not ground.tree.exists()


# --- the list ------------------------------------------------------------------------------------

# The words of contract section 11.5, in its order.
CLAUSES = (
    "logit row off by one",
    "duplicated frontier",
    "shifted position",
    "cross-request visibility",
    "square causal mask",
    "residual from raw p",
    "from q",
    "from a threshold-filtered set",
    "wrong row",
    "bonus from q",
    "testing past the first rejection (token)",
    "bonus after an accepted EOS",
    "stale processor",
    "penalties counted once a run",
    "wrong-token K/V row",
    "draft slice that includes KV(F)",
    "crop when A = K",
    "raw draft row as denominator",
    "confidence threshold used as acceptance",
    "reused draw",
    "acceptance or proposal keyed by absolute position under block",
    "`<=` for `<`",
    "stale generation",
    "ledger with unreached rates",
    "without the terminal token",
    "with a negative cost",
)
every_mutation = pytest.mark.parametrize(
    "mutation", [pytest.param(each, id=each.name) for each in MUTATIONS]
)


def test_every_fault_of_the_contract_is_planted():
    assert {each.clause for each in MUTATIONS} - {""} == set(CLAUSES)


def test_names_are_different_and_plain():
    names = [each.name for each in MUTATIONS]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 72 and "|" not in name for name in names)


@every_mutation
def test_a_mutation_fits_the_tree_and_is_python(mutation):
    text = (ROOT / mutation.file).read_text("utf-8")
    assert text.count(mutation.old) == 1
    mutant = ast.parse(text.replace(mutation.old, mutation.new))
    assert ast.dump(mutant) != ast.dump(ast.parse(text))


@every_mutation
def test_the_killers_of_a_mutation_exist(mutation):
    assert mutation.killers
    for test in mutation.killers:
        file, _, name = test.partition("::")
        assert not name or f"def {name.partition('[')[0]}(" in (ROOT / file).read_text("utf-8")


@pytest.mark.parametrize("scope", Scope)
def test_the_scope_chooses_the_killers(scope, monkeypatch, source):
    """FAST the first of each, FULL all of them."""
    seen = swap("a + b", "a - b", TOTAL, ORDER, REFUSAL)
    asked = []

    class Ground:
        tree = source

        def check_baseline(self, tests):
            asked.append(tuple(tests))

        def run_trial(self, mutation, tests, *, first):
            asked.append((mutation.file, tuple(tests), first))
            return Trial(mutation=mutation, fate=Fate.KILLED, by=tests[:1])

    @contextmanager
    def toy():
        yield Ground()

    monkeypatch.setattr(mutations, "plot", toy)
    other = replace(seen, file="scheduler/runtime/attention.py")
    finding = mutations.prove(scope, [seen, other])
    assert (finding.cases, finding.holds, finding.worst) == (2, True, 0.0)
    first = scope is Scope.FAST
    chosen = (TOTAL,) if first else (TOTAL, ORDER, REFUSAL)
    assert asked == [chosen, (SUMS, chosen, first), (other.file, chosen, first)]


@pytest.mark.slow
def test_the_tree_itself_is_copied_planted_and_left_as_it_was():
    planted = [each for each in MUTATIONS if each.file == "scheduler/sampling/draw.py"]
    before = (ROOT / planted[0].file).read_bytes()
    finding = mutations.prove(Scope.FAST, planted)
    assert finding.holds, finding.note
    assert (ROOT / planted[0].file).read_bytes() == before
