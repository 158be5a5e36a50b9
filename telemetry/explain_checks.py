"""Checks the arithmetic of one request's round by the definitions; pure functions over records.

Formulas: token, Leviathan et al., arXiv 2211.17192; block, Sun et al., arXiv 2403.10444. None of
them is shared with the code that decided the round.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from telemetry.explain_records import COMPARING, Plain, Position, Round, Test

__all__ = ["Fault", "Heading", "Join", "check_join", "check_plain", "check_round"]

RELATIVE = 1e-6
"""Laws are float32: a ratio of two, and its product with a third, are off by less."""
LOOSE = 1e-3
"""For bounds that follow from sums over a whole float32 row."""


class Heading(Enum):
    """Where an inconsistency lies."""

    SAMPLING = "sampling mismatch"
    POSITION = "position mismatch"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that does not hold. `index` is the record within its round."""

    heading: Heading
    kind: str
    message: str
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Where the next round of a request has to go on."""

    round_id: int
    generation: int
    position: int


def check_round(records: Sequence[Position]) -> list[Fault]:
    """Faults of the records of one round, in file order; at least one record.

    What depends on a broken part is not looked at: first the places, then the tests, then what
    was committed.
    """
    for stage in (_places, _tests, _commit):
        faults = list(stage(records))
        if faults:
            return faults
    return []


def check_plain(record: Plain) -> list[Fault]:
    """Faults of a round without drafts."""
    about, ending = record.round, record.ending
    law = "choice" if about.policy in COMPARING else "target"
    if (about.k, about.verified) != (0, 0):
        return [_fault(Heading.POSITION, "reach", "a round with drafts has records of positions")]
    if ending.kind != "plain" or ending.token is None or about.cut:
        return [_fault(Heading.COMMIT, "terminal", f"terminal {ending.kind}, not plain")]
    if about.committed != 1:
        return [_fault(Heading.COMMIT, "committed", f"{about.committed} tokens without a draft")]
    if ending.law != law or ending.scale is not None:
        return [_fault(Heading.SAMPLING, "law", f"the token came from {ending.law}, not {law}")]
    return []


def check_join(last: Join, about: Round) -> Fault | None:
    """Whether a round goes on where the request's last one ended."""
    if about.round_id == last.round_id:
        return _fault(Heading.POSITION, "duplicate", f"round {about.round_id} stands here again")
    if about.round_id < last.round_id or about.generation <= last.generation:
        message = f"generation {about.generation} after {last.generation}"
        return _fault(Heading.POSITION, "generation", message)
    if about.position > last.position:
        message = f"positions {last.position} to {about.position - 1} are in no round"
        return _fault(Heading.POSITION, "gap", message)
    if about.position < last.position:
        message = f"position {about.position} again, {last.position} was next"
        return _fault(Heading.POSITION, "overlap", message)
    return None


def _fault(heading: Heading, kind: str, message: str, index: int = 0) -> Fault:
    return Fault(heading=heading, kind=kind, message=message, index=index)


# ---- places -------------------------------------------------------------------------------------


def _places(records: Sequence[Position]) -> Iterator[Fault]:
    """Places 1..n of one round, n being as many as its A and its cut say."""
    about = records[0].round
    for index, record in enumerate(records):
        if record.place != index + 1:
            message = f"place {record.place} where {index + 1} belongs"
            yield _fault(Heading.POSITION, "place", message, index)
            return
        if record.round != about:
            name = _difference(record.round, about)
            yield _fault(Heading.POSITION, name, f"{name} differs within the round", index)
    if about.verified > about.k:
        yield _fault(Heading.POSITION, "reach", f"{about.verified} of {about.k} drafts accepted")
        return
    most = min(about.verified + 1, about.k)
    whole = len(records) == most and not about.cut
    if not whole and not (about.cut and len(records) <= about.verified):
        message = f"{len(records)} positions, but A = {about.verified} of {about.k} reaches {most}"
        yield _fault(Heading.POSITION, "reach", message, len(records) - 1)
    later = about.k - len(records) if about.policy == "block" else 0
    if len(records[-1].unreached) != later or any(each.unreached for each in records[:-1]):
        message = f"{len(records[-1].unreached)} unreached tests, not {later}"
        yield _fault(Heading.POSITION, "reach", message, len(records) - 1)


def _difference(one: Round, other: Round) -> str:
    return next(name for name in Round.__slots__ if getattr(one, name) != getattr(other, name))


# ---- tests --------------------------------------------------------------------------------------


def _tests(records: Sequence[Position]) -> Iterator[Fault]:
    policy = records[0].round.policy
    tests = _compared if policy in COMPARING else _drawn
    sound = True
    for index, record in enumerate(records):
        for kind, message in [*_laws(record)] or tests(record):
            sound = False
            yield _fault(Heading.SAMPLING, kind, message, index)
    if sound:
        yield from _block(records) if policy == "block" else ()
        yield from _terminal(records)


def _laws(record: Position) -> Iterator[tuple[str, str]]:
    """Whether both rows can have been used as claimed."""
    p, q = record.test.p, record.test.q
    for name, value in (("p_prob", p), ("q_prob", q)):
        if value is None or not 0 <= value <= 1 + RELATIVE:
            yield "probability", f"{name} {value}: not a probability"
    if q == 0:
        yield "zero_q", f"draft {record.draft_token} has q_prob 0: that row never proposes it"
    if p == 0 and record.accepted:
        yield "zero_p", f"draft {record.draft_token} has p_prob 0 and was accepted"


def _drawn(record: Position) -> Iterator[tuple[str, str]]:
    """A test by a uniform: token, and what block has in common with it."""
    test = record.test
    if test.uniform is None or not 0 <= test.uniform < 1:
        yield "uniform", f"uniform {test.uniform}: not in [0, 1)"
        return
    if record.round.policy == "block" or test.p is None or not test.q:
        return
    right = min(1.0, test.p / test.q)
    if not _near(test.ratio, right):
        yield "ratio", f"accept_ratio {test.ratio}, but min(1, p/q) is {right:.6g}"
    elif record.accepted != _passes(test):
        word = "accepted" if record.accepted else "rejected"
        yield "decision", f"{word}, with uniform {test.uniform:.6g} and ratio {test.ratio:.6g}"


def _compared(record: Position) -> Iterator[tuple[str, str]]:
    """A test by equality: temperature 0 and shared noise."""
    equal = record.draft_token == record.target_token
    test = record.test
    if test.uniform is not None:
        yield "uniform", f"uniform {test.uniform}: this rule draws none"
    if test.ratio != equal or (record.round.policy == "greedy" and test.p != equal):
        choice = f"draft {record.draft_token}, target's choice {record.target_token}"
        yield "ratio", f"accept_ratio {test.ratio}, p_prob {test.p}, with {choice}"
    elif record.accepted != equal:
        word = "accepted" if record.accepted else "rejected"
        choice = f"draft {record.draft_token}, target's choice {record.target_token}"
        yield "decision", f"{word}, with {choice}"


def _block(records: Sequence[Position]) -> Iterator[Fault]:
    """P_i from p and q, h_i between 0 and P_i, and A the largest place whose test passes."""
    k, verified = records[0].round.k, records[0].round.verified
    tests = [*(record.test for record in records), *records[-1].unreached]
    reach: float | None = 1.0
    for place, test in enumerate(tests, 1):
        index = min(place, len(records)) - 1
        right = _next_reach(reach, test)
        if place <= verified + 1 and not _near(test.reach, right):
            message = f"P_{place} {test.reach}, but min(1, P_{place - 1} p/q) is {right}"
            yield _fault(Heading.SAMPLING, "ratio", message, index)
            return
        if not _possible(test, last=place == k):
            message = f"accept_ratio {test.ratio} at place {place} of {k}, with P {test.reach}"
            yield _fault(Heading.SAMPLING, "ratio", message, index)
            return
        reach = test.reach
    largest = max((place for place, test in enumerate(tests, 1) if _passes(test)), default=0)
    flags = [index for index, each in enumerate(records) if each.accepted != (index < largest)]
    if largest != verified or flags:
        message = f"A = {verified}, but the largest place that passes is {largest}"
        yield _fault(Heading.SAMPLING, "decision", message, flags[0] if flags else 0)


def _next_reach(before: float | None, test: Test) -> float | None:
    if before is None or test.p is None or not test.q:
        return None
    return min(1.0, before * test.p / test.q)


def _possible(test: Test, *, last: bool) -> bool:
    """What can be said of h_i without the rows: it is P_K at the last place; before, at most P_i,
    and 1 where P_i is 1. A row that was not finite has no bound, and never passes."""
    if test.ratio is None or test.reach is None:
        return test.ratio is None
    if last:
        return _near(test.ratio, test.reach)
    whole = test.reach == 1
    return test.ratio == 1 if whole else 0 <= test.ratio <= test.reach + LOOSE


def _terminal(records: Sequence[Position]) -> Iterator[Fault]:
    """A correction is never the draft that was refused: the residual has no mass there."""
    last, index = records[-1], len(records) - 1
    ending = last.ending
    if ending.kind != "correction" or last.accepted:
        return
    if last.round.policy in COMPARING and ending.token != last.target_token:
        message = f"correction {ending.token}, but the target chose {last.target_token}"
        yield _fault(Heading.SAMPLING, "terminal", message, index)
    elif ending.token == last.draft_token and ending.law != "target_fallback":
        message = f"correction {ending.token} is the draft that was refused"
        yield _fault(Heading.SAMPLING, "terminal", message, index)


def _passes(test: Test) -> bool:
    return test.uniform is not None and test.ratio is not None and test.uniform < test.ratio


def _near(found: float | None, right: float | None) -> bool:
    if found is None or right is None:
        return False
    return abs(found - right) <= RELATIVE * max(abs(right), 1e-30)


# ---- commit -------------------------------------------------------------------------------------


def _commit(records: Sequence[Position]) -> Iterator[Fault]:
    """The accepted prefix, what was committed of it, and the terminal that followed."""
    about, last = records[0].round, len(records) - 1
    kept = sum(record.accepted for record in records)
    if any(not record.accepted for record in records[:-1]):
        yield _fault(Heading.POSITION, "prefix", "a draft after a refused one was reached", last)
        return
    if kept != (len(records) if about.cut else about.verified):
        message = f"{kept} drafts accepted here, A = {about.verified}"
        yield _fault(Heading.COMMIT, "verified", message, last)
    if about.committed != kept + (not about.cut):
        message = f"{about.committed} tokens committed of {kept} drafts and a terminal"
        yield _fault(Heading.COMMIT, "committed", message, last)
    yield from _kinds(records)


def _kinds(records: Sequence[Position]) -> Iterator[Fault]:
    about, ending, last = records[0].round, records[-1].ending, len(records) - 1
    for index, record in enumerate(records[:-1]):
        if record.ending.kind is not None or record.ending.token is not None:
            yield _fault(Heading.COMMIT, "terminal", "a terminal inside the round", index)
    kind = "bonus" if about.verified == about.k else "correction"
    if about.cut:
        kind = "stop"
    if ending.kind != kind or (ending.token is None) != about.cut:
        message = f"terminal {ending.kind} ({ending.token}), not {kind}"
        yield _fault(Heading.COMMIT, "terminal", message, last)
        return
    law = _expected_law(about.policy, kind)
    fell_back = law is not None and "residual" in law and ending.law == "target_fallback"
    if ending.law != law and not fell_back:
        message = f"the terminal came from {ending.law}, not {law}"
        yield _fault(Heading.SAMPLING, "law", message, last)
    elif not _scaled(records):
        message = f"scale {ending.scale} is not P of place {about.verified}"
        yield _fault(Heading.SAMPLING, "law", message, last)


def _expected_law(policy: str, kind: str) -> str | None:
    if kind == "stop":
        return None
    if policy in COMPARING:
        return "choice"
    if kind == "bonus":
        return "target"
    return "block_residual" if policy == "block" else "residual"


def _scaled(records: Sequence[Position]) -> bool:
    """The scale of the block residual is P_A; nothing else has one."""
    ending, accepted = records[-1].ending, records[0].round.verified
    if ending.law != "block_residual":
        return ending.scale is None
    return ending.scale == (1.0 if accepted == 0 else records[accepted - 1].test.reach)
