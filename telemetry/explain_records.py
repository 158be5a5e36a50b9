"""Reads one line of an acceptance log into a record; judges its form, not its arithmetic.

Nothing here comes from the code that writes the log or from the code that decides: `fencepost
explain` checks both.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = [
    "COMPARING",
    "Dropped",
    "Ending",
    "Header",
    "Malformed",
    "Plain",
    "Position",
    "Record",
    "Round",
    "Test",
    "Unpublished",
    "parse",
]

SCHEMA = 1
POLICIES = frozenset({"greedy", "token", "block", "shared_noise"})
COMPARING = frozenset({"greedy", "shared_noise"})
KINDS = frozenset({"correction", "bonus", "plain", "stop"})
LONGEST = 256
"""The longest draft that is believed, so that what is counted by place stays small."""
_LARGEST = sys.float_info.max


class Malformed(ValueError):
    """The line is not a record; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What is true of a whole file. `file` counts the files of one run from 0."""

    file: int
    started: str
    server_version: str
    target: str
    draft: str | None
    dtype: str
    layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What all records of one request's round say alike. `position` is that of the first token
    the round could commit; `verified` is A, before any cut; `committed` is G."""

    round_id: int
    request: int
    generation: int
    position: int
    k: int
    policy: str
    proposer: str
    domain: str
    verified: int
    committed: int
    cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """The numbers of one acceptance test; None where there is none, or it was not finite.

    `ratio` is the bound that the uniform must stay under, `reach` is P_i of block verification.
    """

    q: float | None
    p: float | None
    ratio: float | None
    uniform: float | None
    reach: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a round ended; all None where it had not ended yet."""

    kind: str | None
    token: int | None
    law: str | None
    scale: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One draft position that was reached. `place` counts from 1 within the draft; `unreached`
    are the tests of later places that block verification looked at."""

    round: Round
    place: int
    draft_token: int
    target_token: int | None
    test: Test
    accepted: bool
    ending: Ending
    unreached: tuple[Test, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A round without drafts: one token from the target."""

    round: Round
    ending: Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpublished:
    """A round that was decided, with `verified` drafts accepted, and then given up."""

    round: Round
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Records that the writer had to leave out here."""

    count: int


Record = Header | Position | Plain | Unpublished | Dropped


def parse(line: bytes) -> Record:
    """The record of one line. Raises Malformed."""
    try:
        found = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Malformed("not JSON") from None
    if not isinstance(found, dict):
        raise Malformed("not a JSON object")
    kind = found.get("record")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise Malformed(f"record={kind!r}: unknown kind")
    return reader(_Fields(found))


def _refuse(constant: str) -> float:
    raise ValueError(constant)


class _Fields:
    """The fields of one object, each asked for by its kind. Raises Malformed, naming the field."""

    def __init__(self, found: Mapping[str, object]) -> None:
        self._found = found

    def whole(self, name: str, most: int | None = None) -> int:
        value = self._value(name)
        if type(value) is not int or value < 0 or (most is not None and value > most):
            raise self._wrong(name, value)
        return value

    def whole_or_none(self, name: str) -> int | None:
        return None if self._value(name) is None else self.whole(name)

    def real(self, name: str) -> float | None:
        value = self._value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value)
        if not abs(value) <= _LARGEST:  # not so for what is no number, either
            raise self._wrong(name, value)
        return float(value)

    def flag(self, name: str) -> bool:
        value = self._value(name)
        if not isinstance(value, bool):
            raise self._wrong(name, value)
        return value

    def word(self, name: str, known: frozenset[str] | None = None) -> str:
        value = self._value(name)
        if not isinstance(value, str) or (known is not None and value not in known):
            raise self._wrong(name, value)
        return value

    def word_or_none(self, name: str, known: frozenset[str] | None = None) -> str | None:
        return None if self._value(name) is None else self.word(name, known)

    def objects(self, name: str) -> list["_Fields"]:
        value = self._value(name)
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self._wrong(name, value)
        return [_Fields(each) for each in value]

    def _value(self, name: str) -> object:
        if name not in self._found:
            raise Malformed(f"{name} is missing")
        return self._found[name]

    @staticmethod
    def _wrong(name: str, value: object) -> Malformed:
        return Malformed(f"{name}={str(value)[:40]}: not what belongs there")


def _header(fields: _Fields) -> Header:
    schema = fields.whole("schema")
    if schema != SCHEMA:
        raise Malformed(f"schema={schema}: only {SCHEMA} is known")
    return Header(
        file=fields.whole("file"),
        started=fields.word("started"),
        server_version=fields.word("server_version"),
        target=fields.word("target"),
        draft=fields.word_or_none("draft"),
        dtype=fields.word("dtype"),
        layout=fields.word("layout"),
    )


def _round(fields: _Fields, position: int) -> Round:
    return Round(
        round_id=fields.whole("round_id"),
        request=fields.whole("request"),
        generation=fields.whole("generation"),
        position=position,
        k=fields.whole("k", LONGEST),
        policy=fields.word("policy", POLICIES),
        proposer=fields.word("proposer"),
        domain=fields.word("domain"),
        verified=fields.whole("verified"),
        committed=fields.whole("committed_token_count"),
        cut=fields.flag("cut"),
    )


def _test(fields: _Fields) -> Test:
    return Test(
        q=fields.real("q_prob"),
        p=fields.real("p_prob"),
        ratio=fields.real("accept_ratio"),
        uniform=fields.real("uniform"),
        reach=fields.real("reach"),
    )


def _ending(fields: _Fields) -> Ending:
    return Ending(
        kind=fields.word_or_none("terminal_kind", KINDS),
        token=fields.whole_or_none("terminal_token"),
        law=fields.word_or_none("correction_distribution_id"),
        scale=fields.real("correction_scale"),
    )


def _position(fields: _Fields) -> Position:
    place = fields.whole("place", LONGEST)
    return Position(
        round=_round(fields, fields.whole("position") - place + 1),
        place=place,
        draft_token=fields.whole("draft_token"),
        target_token=fields.whole_or_none("target_token"),
        test=_test(fields),
        accepted=fields.flag("accepted"),
        ending=_ending(fields),
        unreached=tuple(_test(each) for each in fields.objects("unreached")),
    )


def _plain(fields: _Fields) -> Plain:
    return Plain(round=_round(fields, fields.whole("position")), ending=_ending(fields))


def _unpublished(fields: _Fields) -> Unpublished:
    about = _round(fields, fields.whole("position"))
    return Unpublished(round=about, outcome=fields.word("outcome"))


def _dropped(fields: _Fields) -> Dropped:
    return Dropped(count=fields.whole("count"))


_READERS: Mapping[str, Callable[[_Fields], Record]] = {
    "header": _header,
    "position": _position,
    "plain": _plain,
    "unpublished": _unpublished,
    "dropped": _dropped,
}
