"""What a proof is and what it found: frozen records, for the table and for the data file.

Knows nothing of what is proven, of how proofs are found or of how they are shown.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Scope(Enum):
    """How much is run: FAST belongs to CI (all proofs together under five minutes), FULL to the
    run whose table is committed."""

    FAST = "fast"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a proof saw.

    `cases` counts what was compared (joint outcomes, tokens, planted faults, ..., as `unit`
    says), `worst` is the largest error among them in the units of `limit`, which says what would
    have been too much, such as "1e-12". `note` is one short remark for the table, `rows` further
    lines of data (such as one a planted fault) for the data file and `--detail`.
    """

    cases: int
    unit: str
    worst: float
    limit: str
    holds: bool
    note: str = ""
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One line of the table. `section` is the part of the contract that it holds."""

    name: str
    section: str
    oracle: str
    run: Callable[[Scope], Finding]
