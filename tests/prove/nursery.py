"""A process that has imported everything but the product, and forks one child a job.

Run as a script, apart from the package, with the names of modules to import: jobs come as JSON
lines on stdin, answers go as JSON lines to stdout. A child runs pytest in the job's tree, which
comes first on its path then, and says what its tests came to. Knows nothing of planted faults.
"""

import gc
import importlib
import json
import linecache
import os
import resource
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

import hypothesis
import pytest

# A mistake of whoever planted the fault, not a fault that a test has seen.
MISTAKES = (SyntaxError, ImportError, NameError, AttributeError, TypeError)

# Plugins that were imported beforehand keep plain assertions, which they are said to be.
_REWRITTEN = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"


class Witness:
    """A pytest plugin: who failed, in what way, and how many passed. `tree` is where ours lies."""

    def __init__(self, tree: str) -> None:
        self._tree = tree + os.sep
        self.failed: list[tuple[str, str, str]] = []
        self.passed: list[str] = []
        self.skipped: list[str] = []

    def pytest_exception_interact(self, node, call, report) -> None:
        """Take in a failure: (node id, kind, text). The kind of a good one is "seen"."""
        problem = call.excinfo.value
        if isinstance(report, pytest.TestReport):
            kind = "seen" if self._seen(problem) else "crash"
            told = f"{type(problem).__name__}: {problem}".partition("\n")[0]
        else:  # its text is a whole traceback, with the exception at the end
            kind, told = "not collected", str(problem).rpartition("\n")[2].removeprefix("E").strip()
        self.failed.append((node.nodeid, kind, told))

    def pytest_runtest_logreport(self, report) -> None:
        """Take in what was not a failure."""
        if report.skipped:
            self.skipped.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.append(report.nodeid)

    def _seen(self, problem: BaseException) -> bool:
        """Whether an assertion of a test or of its oracle, or a refusal of the product, says so."""
        if isinstance(problem, BaseExceptionGroup):
            return any(map(self._seen, problem.exceptions))
        if isinstance(problem, AssertionError | pytest.fail.Exception):
            return True
        path, line = _last(problem.__traceback__)
        if isinstance(problem, MISTAKES) or not path.startswith(self._tree):
            return False
        return linecache.getline(path, line).lstrip().startswith(("raise ", "raise\n"))


def _last(trace: TracebackType | None) -> tuple[str, int]:
    """File and line where an exception came from."""
    if trace is None:
        return "", 0
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno


def answer(job: dict) -> dict:
    """Run one job in a child. `timed_out` when it took more than the job's seconds."""
    reading, writing = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(job, writing)
    os.close(writing)
    try:
        said = _await(reading, started + job["seconds"])
    finally:
        os.close(reading)
        _end(child)
    found = json.loads(said) if said else {"ended": None, "failed": []}
    return {
        **found,
        "timed_out": not said and time.monotonic() >= started + job["seconds"],
        "took": time.monotonic() - started,
    }


def _await(reading: int, deadline: float) -> bytes:
    """All that the child writes until it closes its end, or what there is at the deadline.

    Leaves with the process that gave the job.
    """
    said = b""
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([reading, 0], [], [], left)
        if reading in ready:
            more = os.read(reading, 65536)
            if not more:
                return said
            said += more
        elif ready and not sys.stdin.buffer.peek(1):
            raise SystemExit
    return b""


def _end(child: int) -> None:
    """The child and whatever it started are gone afterwards."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _child(job: dict, writing: int) -> None:
    """Run the job's tests and write what they came to. Does not return."""
    code = 1
    try:
        os.setpgid(0, 0)
        limit = int(job["seconds"]) + 10
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        said = json.dumps(_run_tests(job)).encode()
        while said:
            said = said[os.write(writing, said) :]
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, only the log can be told
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run_tests(job: dict) -> dict:
    tree = job["tree"]
    os.chdir(tree)
    sys.dont_write_bytecode = not job["caches"]
    # Shrinking would only say the same fault more nicely, and chance would make a kill a matter of
    # luck. A busy machine is no fault either.
    hypothesis.settings.register_profile(
        "planted",
        database=None,
        deadline=None,
        derandomize=True,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("planted")
    witness = Witness(tree)
    flags = ["-q", "--tb=short", "-p", "no:cacheprovider", "-W", _REWRITTEN]
    flags += ["--basetemp", job["scratch"]]
    flags += ["-x"] * job["first"]
    ended = int(pytest.main([*flags, *job["tests"]], plugins=[witness]))
    strangers = [name for name in job["ours"] if not _within(tree, name)]
    return {
        "ended": ended,
        "failed": witness.failed,
        "passed": witness.passed,
        "skipped": witness.skipped,
        "strangers": strangers,
    }


def _within(tree: str, name: str) -> bool:
    """Whether a module, if it was imported at all, is the tree's own."""
    module = sys.modules.get(name)
    return module is None or Path(module.__file__ or tree).is_relative_to(tree)


def main() -> None:
    """Answer jobs until there are no more."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    # Collecting garbage, which pytest does often, need not look at all that again in each child.
    gc.collect()
    gc.freeze()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in iter(sys.stdin.buffer.readline, b""):
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
