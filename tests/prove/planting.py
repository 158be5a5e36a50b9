"""Plants one fault at a time in a copy of the product, and sees whether a test notices.

Knows how to copy, plant, run and put back; which faults there are is told. The working tree is read
once and never written.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("scheduler", "server", "telemetry", "deploy")
TIME_LIMIT = "time limit"
# Whatever the product and its tests import, so that no child pays for it.
PRELOADED = (
    "anyio._backends._asyncio",
    "anyio.pytest_plugin",
    "hypothesis.extra.numpy",
    "hypothesis.stateful",
    "numpy",
    "pytest_timeout",
    "torch",
    "transformers",
    "transformers.models.llama.modeling_llama",
    "transformers.models.mistral.modeling_mistral",
    "transformers.models.qwen2.modeling_qwen2",
)

_COPIED = (*PRODUCT, "tests")
_WEIGHTS = Path("deploy", "pair", "weights")
_SECONDS = 60.0
_BASELINE_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One fault: `old` stands exactly once in `file` and becomes `new`.

    `name` says the fault in words, `clause` the words of the contract that it belongs to ("" for
    one that the contract does not list). `killers` are pytest node ids, the cheapest first.
    """

    name: str
    clause: str
    file: str
    old: str
    new: str
    killers: tuple[str, ...]


def fault(name: str, clause: str, file: str, swap: tuple[str, str], *killers: str) -> Mutation:
    """A mutation; `swap` is its old text and its new one."""
    old, new = swap
    return Mutation(name=name, clause=clause, file=file, old=old, new=new, killers=killers)


class Fate(Enum):
    """What became of a mutation. MISPLACED: its old text is not there exactly once. BROKEN: the
    mutant does not run at all, so that no test has judged it."""

    KILLED = "killed"
    SURVIVED = "survived"
    MISPLACED = "misplaced"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One mutation and its fate. `by` are the tests that failed, `told` says why, in one line."""

    mutation: Mutation
    fate: Fate
    by: tuple[str, ...] = ()
    told: str = ""
    seconds: float = 0.0


class BaselineFailed(RuntimeError):
    """A killer does not pass on the product as it is: its failures would say nothing."""


class Plot:
    """A copy of the product with a process that runs tests on it. Made by `plot`."""

    def __init__(self, tree: Path, process: "subprocess.Popen[bytes]") -> None:
        self.tree = tree
        self._log = tree.with_name("tests.log")
        self._process = process
        self._limit = _SECONDS

    def check_baseline(self, tests: Sequence[str]) -> float:
        """Run all `tests` without any fault; the seconds it took. No mutant takes much longer.

        Raises BaselineFailed unless each of them passes.
        """
        found = self._ask(tests, seconds=_BASELINE_SECONDS, first=False, caches=True)
        self._limit = _SECONDS + 3 * found["took"]
        problem = _problem(found, tests)
        if problem is not None:
            raise BaselineFailed(f"without any fault: {problem}")
        return float(found["took"])

    def run_trial(self, mutation: Mutation, tests: Sequence[str], *, first: bool) -> Trial:
        """Plant `mutation`, run `tests` on it and take it out again. `first`: one failure is
        enough."""
        path = self.tree / mutation.file
        whole = path.read_text("utf-8") if path.is_file() else ""
        times = whole.count(mutation.old)
        if times != 1:
            told = f"the old text stands {times} times in {mutation.file}"
            return Trial(mutation=mutation, fate=Fate.MISPLACED, told=told)
        with _replaced(path, whole.replace(mutation.old, mutation.new)):
            found = self._ask(tests, seconds=self._limit, first=first, caches=False)
        fate, by, told = _fate(found)
        return Trial(mutation=mutation, fate=fate, by=by, told=told, seconds=found["took"])

    def _ask(
        self, tests: Sequence[str], *, seconds: float, first: bool, caches: bool
    ) -> dict[str, Any]:
        """What the tests came to. `caches`: compiled files may be left for later runs."""
        job = {
            "tree": str(self.tree),
            "log": str(self._log),
            "scratch": str(self.tree.with_name("scratch")),
            "ours": _COPIED,
            "tests": list(tests),
            "seconds": seconds,
            "first": first,
            "caches": caches,
        }
        given, told = _pipes(self._process)
        given.write(json.dumps(job).encode() + b"\n")
        given.flush()
        answer = told.readline()
        if not answer:
            raise RuntimeError("the process that runs the tests is gone")
        found: dict[str, Any] = json.loads(answer)
        return {**found, "log": self._last_line()}

    def _last_line(self) -> str:
        """The line of the log that most likely says why pytest did not run."""
        lines = [
            line for line in self._log.read_text("utf-8", "replace").split("\n") if line.strip()
        ]
        errors = [line for line in lines if line.startswith("ERROR")]
        return (errors or lines[-1:] or [""])[0].strip()


@contextmanager
def plot(source: Path = ROOT, preloaded: Sequence[str] = PRELOADED) -> Iterator[Plot]:
    """A copy of `source` and its process, which imports `preloaded` first; both are gone
    afterwards."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Path(folder).resolve() / "tree"
        copy_product(source, tree)
        process = _started(tree, preloaded)
        try:
            _, told = _pipes(process)
            if told.readline() != b"ready\n":
                raise RuntimeError("the process that runs the tests did not start")
            yield Plot(tree, process)
        finally:
            _stop(process)


def copy_product(source: Path, tree: Path) -> None:
    """Copy product and tests without compiled files; weights are linked."""
    tree.mkdir()
    for name in _COPIED:
        if (source / name).is_dir():
            ignored = _ignored(source / _WEIGHTS)
            shutil.copytree(source / name, tree / name, ignore=ignored)
    shutil.copy2(source / "pyproject.toml", tree)
    if (source / _WEIGHTS).is_dir():
        (tree / _WEIGHTS).symlink_to((source / _WEIGHTS).resolve())


def _ignored(weights: Path):
    def names(folder: str, inside: list[str]) -> list[str]:
        return [each for each in inside if each == "__pycache__" or Path(folder, each) == weights]

    return names


def _started(tree: Path, preloaded: Sequence[str]) -> "subprocess.Popen[bytes]":
    """The process, with nothing of ours imported: `-P` keeps the script's folder off its path."""
    quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("nursery.py")), *preloaded],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tree,
        env={**os.environ, **quiet},
    )


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End the process; it takes its child along when its stdin ends."""
    for pipe in _pipes(process):
        pipe.close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _pipes(process: "subprocess.Popen[bytes]") -> tuple[IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process has no pipes")
    return process.stdin, process.stdout


@contextmanager
def _replaced(path: Path, text: str) -> Iterator[None]:
    """`path` with another text, for a while.

    Python takes a compiled file for fresh if size and time of its source are what they were. So
    the fault gets a time that no other text has, and the right text its own one again.
    """
    before, times = path.read_bytes(), path.stat()
    try:
        path.write_text(text, "utf-8")
        os.utime(path, (0, 0))
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _problem(found: dict[str, Any], tests: Sequence[str]) -> str | None:
    """Why a run is not one in which every test passed."""
    for test, _, told in found["failed"]:
        return f"{test}: {told}"
    if found["timed_out"] or found["ended"] != 0:
        return "the tests took too long" if found["timed_out"] else _ending(found)
    if found["strangers"]:
        return f"the tests ran another {found['strangers'][0]}"
    for test in tests:
        # A whole file or a test with all its parameters is named by how their ids begin.
        if not any(
            each == test or each.startswith((f"{test}[", f"{test}::")) for each in found["passed"]
        ):
            return f"{test} did not pass"
    return None


def _fate(found: dict[str, Any]) -> tuple[Fate, tuple[str, ...], str]:
    if found["timed_out"]:
        return Fate.KILLED, (TIME_LIMIT,), TIME_LIMIT
    failed = found["failed"]
    seen = [(test, told) for test, kind, told in failed if kind == "seen"]
    unread = [told for _, kind, told in failed if kind == "not collected"]
    if seen and not unread and not found["strangers"]:
        return Fate.KILLED, tuple(dict.fromkeys(test for test, _ in seen)), seen[0][1]
    if failed:
        test, kind, told = next((each for each in failed if each[1] != "seen"), failed[0])
        return Fate.BROKEN, (), f"{kind}: {test}: {told}"
    if found["ended"] == 0 and found["passed"] and not found["strangers"]:
        return Fate.SURVIVED, (), ""
    return Fate.BROKEN, (), _ending(found)


def _ending(found: dict[str, Any]) -> str:
    how = "died" if found["ended"] is None else f"did not run (pytest ended with {found['ended']})"
    return f"the tests {how}: {found['log']}"
