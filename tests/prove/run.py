"""Runs one proof and keeps what it came to. Knows nothing of how it is shown."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from tests.prove.proof import Finding, Proof, Scope
from tests.prove.report import Outcome

logger = logging.getLogger(__name__)


def run_proof(
    proof: Proof, scope: Scope, clock: Callable[[], float] = time.perf_counter
) -> Outcome:
    """What `proof` came to. An exception is its outcome too, so that the next proof still runs."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    finding: Finding | None = None
    error: str | None = None
    started = clock()
    try:
        finding = _plain(proof.run(scope))
    except Exception as problem:
        logger.exception("%s raised", proof.name)
        error = f"{type(problem).__name__}: {problem}"
    return Outcome(
        name=proof.name,
        section=proof.section,
        oracle=proof.oracle,
        date=date,
        seconds=clock() - started,
        finding=finding,
        error=error,
    )


def _plain(finding: Finding) -> Finding:
    """The same without NumPy's scalars, which no JSON file takes."""
    return replace(
        finding,
        cases=int(finding.cases),
        worst=float(finding.worst),
        holds=bool(finding.holds),
    )
