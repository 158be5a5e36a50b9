"""Runs the contract suite for the runners that this machine has, in a process of its own.

Knows pytest's command line, nothing of what the tests check.
"""

import re
import sys
from importlib.util import find_spec

from tests.gpu.budget import Budget, say
from tests.gpu.figures import Contracts
from tests.gpu.processes import run_within

_LEAST = 30.0
_MOST = 180.0
_LAST_LINES = 15
"""Of a suite that was cut off: the last one names the test that ran."""
_WENT_WELL = re.compile(r"::.* (PASSED|SKIPPED)\b")
_FILES = ("tests/contracts/test_runner.py", "tests/contracts/test_forward.py")
# Without a CUDA device a smoke run on one runner: the test suite runs all of them.
_ON_CPU = ("-k", "torch-cpu-float32 and (replay or ragged)", "-m", "not gpu")


def run_contracts(budget: Budget, *, cuda: bool) -> Contracts | None:
    """How the suite ended; None when it could not run, which the budget then has noted."""
    if find_spec("pytest") is None:
        budget.skip("contracts", "pytest is not installed")
        return None
    if not budget.affords("contracts", _LEAST):
        return None
    chosen = ("-m", "gpu", "tests/contracts", "tests/gpu") if cuda else (*_ON_CPU, *_FILES)
    command = [
        *(sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--no-header"),
        *("--durations", "10"),
        *("-c", "tests/gpu/contracts.ini", "--rootdir", ".", *chosen),
    ]
    say(f"contracts: {' '.join(command[1:])}")
    seconds = min(_MOST, budget.left())
    ended = run_within(seconds, command)
    if ended.status is None:
        say("\n".join(ended.lines[-_LAST_LINES:]))
        budget.skip("contracts", f"cut off after {seconds:.0f} s")
        return None
    if ended.status:
        say("\n".join(line for line in ended.lines if not _WENT_WELL.search(line)))
    summary = ended.lines[-1] if ended.lines else "said nothing"
    return Contracts(summary=summary.strip("= "), status=ended.status)
