"""Adds up checked rounds: acceptance by place, the law of A, and where drafts were lost.

Knows counts and the two formulas for them; nothing of files, lines or faults. What it keeps does
not grow with the log.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import sqrt
from operator import mul

from telemetry.explain_checks import Heading
from telemetry.explain_records import Position, Round

__all__ = ["LOSSES", "Alpha", "Law", "Loss", "Tally", "wilson"]

_Z = 1.959963984540054  # 97.5 % of a normal variable lies below

LOSSES = {
    "draft quality": "refused by the target's own test, in rounds that check",
    Heading.SAMPLING.value: "in rounds whose tests do not follow from their numbers",
    Heading.POSITION.value: "in rounds whose places or positions do not join",
    "commit: cut": "accepted, then cut off by a stop or the budget",
    "commit: unpublished": "accepted, in rounds that were stale or aborted",
    "commit: mismatch": "in rounds that committed something else than they accepted",
}
"""Where a draft can be lost, in the order shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alpha:
    """Reach acceptance at one place: `low` and `high` are the Wilson 95 % interval."""

    place: int
    reached: int
    accepted: int
    alpha: float
    low: float
    high: float
    survival: float


@dataclass(slots=True, kw_only=True)
class Law:
    """Rounds of one K: how many of them had each A (before any cut), and what they committed."""

    accepted: list[int]
    committed: int = 0

    @property
    def rounds(self) -> int:
        return sum(self.accepted)

    @property
    def mean_accepted(self) -> float:
        """E[A] at this K."""
        return sum(a * count for a, count in enumerate(self.accepted)) / self.rounds

    @property
    def mean_committed(self) -> float:
        """E[G] at this K."""
        return self.committed / self.rounds


@dataclass(slots=True, kw_only=True)
class Loss:
    """Rounds that lost drafts in one way, and how many drafts."""

    rounds: int = 0
    drafts: int = 0

    def add(self, drafts: int) -> None:
        """Count one round."""
        self.rounds += drafts > 0
        self.drafts += drafts


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of rounds. `drafted` and `kept` are of all published rounds, reach and the laws of
    those that check."""

    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    laws: dict[int, Law] = field(default_factory=dict)
    policies: set[str] = field(default_factory=set)
    plain: int = 0
    drafted: int = 0
    kept: int = 0
    losses: dict[str, Loss] = field(default_factory=lambda: {name: Loss() for name in LOSSES})

    def add(self, records: Sequence[Position], heading: Heading | None) -> None:
        """Count one published round with drafts; `heading` is where its first fault lies."""
        about, kept = records[0].round, sum(record.accepted for record in records)
        self.drafted += max(about.k, kept)
        self.kept += kept
        if heading is not None:
            name = "commit: mismatch" if heading is Heading.COMMIT else heading.value
            self.losses[name].add(max(about.k - kept, 0))
            return
        self.losses["draft quality"].add(about.k - about.verified)
        self.losses["commit: cut"].add(about.verified - kept)
        self._add_reach(len(records), kept)
        law = self.laws.setdefault(about.k, Law(accepted=[0] * (about.k + 1)))
        law.accepted[about.verified] += 1
        law.committed += about.committed
        self.policies.add(about.policy)

    def add_plain(self) -> None:
        """Count one round without drafts."""
        self.plain += 1

    def add_unpublished(self, about: Round) -> None:
        """Count one round that was given up."""
        self.losses["commit: unpublished"].add(about.verified)

    @property
    def rounds(self) -> int:
        """Rounds with drafts that check."""
        return sum(law.rounds for law in self.laws.values())

    @property
    def mean_committed(self) -> float | None:
        """E[G] over all rounds with drafts; None without any."""
        committed = sum(law.committed for law in self.laws.values())
        return committed / self.rounds if self.rounds else None

    def alphas(self) -> Iterator[Alpha]:
        """By place. Survival is the product of the alphas so far: what was not reached is
        censored and counts nowhere."""
        rates = [a / r for a, r in zip(self.accepted, self.reached, strict=True)]
        for index, survival in enumerate(accumulate(rates, mul)):
            reached, accepted = self.reached[index], self.accepted[index]
            low, high = wilson(accepted, reached)
            yield Alpha(
                place=index + 1,
                reached=reached,
                accepted=accepted,
                alpha=rates[index],
                low=low,
                high=high,
                survival=survival,
            )

    def _add_reach(self, reached: int, accepted: int) -> None:
        missing = reached - len(self.reached)
        self.reached += [0] * missing
        self.accepted += [0] * missing
        for index in range(reached):
            self.reached[index] += 1
            self.accepted[index] += index < accepted


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (E. B. Wilson, JASA 22, 1927); at least one trial."""
    rate, weight = successes / trials, _Z * _Z / trials
    centre = (rate + weight / 2) / (1 + weight)
    spread = _Z / (1 + weight) * sqrt(rate * (1 - rate) / trials + weight / (4 * trials))
    return max(centre - spread, 0.0), min(centre + spread, 1.0)
