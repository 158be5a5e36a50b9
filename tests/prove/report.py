"""What a run of proofs came to, as records and as JSON. Knows no proof and no way to show one.

Reports on one product can be put together, so that long proofs may run in parts.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.bench.figures import Machine, Versions
from tests.prove.proof import Finding, Proof, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One proof that was run: what it found, or the error that it raised. `date` is when it
    began, in UTC; `seconds` are wall time."""

    name: str
    section: str
    oracle: str
    date: str
    seconds: float
    finding: Finding | None
    error: str | None

    @property
    def holds(self) -> bool:
        """Whether it found what it had to."""
        return self.finding is not None and self.finding.holds and self.finding.cases > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All outcomes, on what and of what they are. `product` is the digest of the sources that the
    proofs are about, `threads` are those of one tensor operation, `offered` counts the proofs that
    there are, run or not."""

    date: str
    scope: Scope
    machine: Machine
    versions: Versions
    numpy: str
    product: str
    threads: int
    offered: int
    outcomes: tuple[Outcome, ...]

    @property
    def holds(self) -> bool:
        """Whether every proof that was run holds."""
        return all(each.holds for each in self.outcomes)


class MergeRefused(ValueError):
    """Two reports do not speak of the same thing; the message names what differs."""


def write_report(report: Report, path: Path) -> None:
    """The report as a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = asdict(report) | {"scope": report.scope.value}
    path.write_text(json.dumps(data, indent=2, allow_nan=True) + "\n", "utf-8")


def read_report(path: Path) -> Report:
    """The report that `write_report` wrote. Raises ValueError naming the file if it is none."""
    try:
        return _report(json.loads(path.read_text("utf-8")))
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"{path.name}: no report of proofs ({problem!r})") from None


def merged(now: Report, earlier: Sequence[Report], order: Sequence[Proof]) -> Report:
    """`now` with the earlier outcomes of proofs that it lacks, later files winning, in `order`.

    Raises MergeRefused when product, scope or versions differ.
    """
    found = {each.name: each for report in earlier for each in report.outcomes}
    for report in earlier:
        _check_same(now, report)
    found |= {each.name: each for each in now.outcomes}
    kept = tuple(found[proof.name] for proof in order if proof.name in found)
    return replace(now, outcomes=kept)


def _check_same(now: Report, other: Report) -> None:
    facts = (
        ("product", now.product, other.product),
        ("scope", now.scope.value, other.scope.value),
        ("python", now.versions.python, other.versions.python),
        ("torch", now.versions.torch, other.versions.torch),
        ("transformers", now.versions.transformers, other.versions.transformers),
        ("numpy", now.numpy, other.numpy),
    )
    for name, ours, theirs in facts:
        if ours != theirs:
            raise MergeRefused(f"{name}: {theirs} in the file, {ours} now")


def _report(data: dict[str, Any]) -> Report:
    machine = data["machine"] | {"flags": tuple(data["machine"]["flags"])}
    read = {
        "scope": Scope(data["scope"]),
        "machine": Machine(**machine),
        "versions": Versions(**data["versions"]),
        "outcomes": tuple(map(_outcome, data["outcomes"])),
    }
    return Report(**(data | read))


def _outcome(data: dict[str, Any]) -> Outcome:
    finding = data["finding"]
    if finding is not None:
        rows = tuple(tuple(row) for row in finding["rows"])
        finding = Finding(**(finding | {"rows": rows}))
    return Outcome(**(data | {"finding": finding}))
