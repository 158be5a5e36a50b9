"""Reads acceptance logs in one pass and says whether they check and where acceptance was lost.

What it keeps does not grow with the log. Knows the order of lines and rounds; the arithmetic of a
round stands in `telemetry.explain_checks`.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from telemetry.explain_checks import Fault, Join, check_join, check_plain, check_round
from telemetry.explain_figures import Tally
from telemetry.explain_records import (
    Dropped,
    Header,
    Malformed,
    Plain,
    Position,
    Record,
    Round,
    Unpublished,
    parse,
)

__all__ = ["BY", "Finding", "Report", "Unreadable", "explain"]

BY = ("policy", "domain", "proposer", "k")
OTHERS = "(others)"
_LONGEST_LINE = 1 << 18
_OPEN_REQUESTS = 1 << 14
_KNOWN_FILES = 1 << 14
_PARTS = 256
_SHOWN = 10


class Unreadable(Exception):
    """The input is no acceptance log; the message names it and says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault or malformed line, and where it stands."""

    file: str
    line: int
    heading: str
    kind: str
    message: str


@dataclass(slots=True, kw_only=True)
class Report:
    """What was read. `parts` holds figures by the asked label, or all under "all".

    `headers` are those of the last runs. `unfinished` counts last lines that a writer had not
    ended, `dropped` records that the writer left out, `faults` all faults by (heading, kind);
    `first` are the first findings.
    """

    headers: list[Header] = field(default_factory=list)
    runs: int = 0
    files: int = 0
    records: int = 0
    requests: int = 0
    malformed: int = 0
    unfinished: int = 0
    dropped: int = 0
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: list[Finding] = field(default_factory=list)
    parts: dict[str, Tally] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """0 when every line is a record and all records check, else 1."""
        return 1 if self.faults or self.malformed else 0

    def add(self, finding: Finding) -> None:
        """Count a fault; the first ones are kept as they are."""
        self.faults[finding.heading, finding.kind] += 1
        self._show(finding)

    def add_malformed(self, file: str, line: int, why: str) -> None:
        """Count a line that is no record."""
        self.malformed += 1
        self._show(Finding(file=file, line=line, heading="malformed", kind="line", message=why))

    def _show(self, finding: Finding) -> None:
        if len(self.first) < _SHOWN:
            self.first.append(finding)


def explain(names: Sequence[str], stdin: BinaryIO, by: str | None = None) -> Report:
    """Read logs, `-` being `stdin`, and check every record; `by` is one of `BY`.

    Files of one run are read in the order in which they were written, whatever their order here.
    Raises Unreadable, also for a file that is here twice.
    """
    reader = _Reader(by)
    with ExitStack() as opened:
        streams = [(name, _open(name, stdin, opened)) for name in names]
        for name, stream, first in sorted(
            ((name, stream, _first(name, stream)) for name, stream in streams),
            key=lambda each: (each[2].started, each[2].file),
        ):
            reader.file(name, first)
            reader.lines(stream)
    return reader.report


def _open(name: str, stdin: BinaryIO, opened: ExitStack) -> BinaryIO:
    if name == "-":
        return stdin
    try:
        return opened.enter_context(Path(name).open("rb"))
    except OSError as problem:
        raise Unreadable(f"{name}: {problem.strerror}") from None


def _first(name: str, stream: BinaryIO) -> Header:
    try:
        record = parse(stream.readline(_LONGEST_LINE))
    except (OSError, Malformed) as problem:
        raise Unreadable(f"{name}: no acceptance log: {problem}") from None
    if not isinstance(record, Header):
        raise Unreadable(f"{name}: no acceptance log: its first line is no header")
    return record


class _Reader:
    """Puts lines together to rounds, and rounds to requests."""

    def __init__(self, by: str | None) -> None:
        self.report = Report()
        self._by = by
        self._name = ""
        self._round: list[tuple[int, Position]] = []
        # None: seen, but where it goes on is not known.
        self._joins: OrderedDict[int, Join | None] = OrderedDict()
        self._last: Header | None = None
        # Where each file of a run was found, by (started, file).
        self._files: OrderedDict[tuple[str, int], str] = OrderedDict()
        # A line was lost, and no new round has begun since.
        self._torn = False

    def file(self, name: str, header: Header) -> None:
        """A file begins."""
        self._name = name
        self._torn = False
        self.report.files += 1
        self._take_header(header)

    def lines(self, stream: BinaryIO) -> None:
        """Take all lines after the first. Raises Unreadable when reading breaks."""
        try:
            for number, line in _numbered(stream):
                self._take_line(number, line)
        except OSError as problem:
            raise Unreadable(f"{self._name}: {problem.strerror}") from None
        self._end_round()

    def _take_line(self, number: int, line: bytes) -> None:
        try:
            record = parse(line)
        except Malformed as problem:
            if line.endswith(b"\n") or len(line) == _LONGEST_LINE:
                self.report.add_malformed(self._name, number, str(problem))
            else:
                # The writer was stopped, or has not ended it yet; so is the round it belongs to.
                self.report.unfinished += 1
            self._lose_line()
            return
        self._take(number, record)

    def _lose_line(self) -> None:
        """Whichever round the line was of, neither that round nor what follows it can be judged."""
        self._round.clear()
        self._torn = True
        self._forget()

    def _take(self, number: int, record: Record) -> None:
        if isinstance(record, Position) and self._goes_on(record):
            self._round.append((number, record))
            self.report.records += 1
            return
        self._end_round()
        self._torn = self._torn and isinstance(record, Position) and record.place > 1
        if isinstance(record, Header):
            self._take_header(record)
        elif isinstance(record, Dropped):
            self.report.dropped += record.count
            self._forget()
        else:
            self.report.records += 1
            self._begin(number, record)

    def _begin(self, number: int, record: Position | Plain | Unpublished) -> None:
        if isinstance(record, Position):
            self._round = [(number, record)]
        elif isinstance(record, Plain):
            faults = check_plain(record) or self._join(record.round)
            self._note(record.round, faults, [number])
            if not faults:
                self._part(record.round).add_plain()
        else:
            self._part(record.round).add_unpublished(record.round)

    def _goes_on(self, record: Position) -> bool:
        """Whether this is a later place of the round that is being read."""
        if not self._round:
            return False
        last = self._round[-1][1]
        same = (last.round.round_id, last.round.request) == (
            record.round.round_id,
            record.round.request,
        )
        return same and record.place > last.place

    def _end_round(self) -> None:
        if not self._round:
            return
        lines, records = zip(*self._round, strict=True)
        self._round = []
        if self._torn:  # what a lost line left of its round
            self._torn = False
            return
        about = records[0].round
        faults = check_round(records) or self._join(about)
        self._note(about, faults, lines)
        self._part(about).add(records, faults[0].heading if faults else None)

    def _join(self, about: Round) -> list[Fault]:
        last = self._joins.get(about.request)
        fault = None if last is None else check_join(last, about)
        return [] if fault is None else [fault]

    def _note(self, about: Round, faults: Sequence[Fault], lines: Sequence[int]) -> None:
        """Report faults, and remember where the request has to go on. After a fault that is not
        known, but for a round that merely stands here twice."""
        for fault in faults:
            self.report.add(
                Finding(
                    file=self._name,
                    line=lines[fault.index],
                    heading=fault.heading.value,
                    kind=fault.kind,
                    message=f"round {about.round_id}, request {about.request}: {fault.message}",
                )
            )
        if faults and faults[0].kind == "duplicate":
            return
        after = None if faults else _after(about)
        self.report.requests += about.request not in self._joins
        self._joins[about.request] = after
        self._joins.move_to_end(about.request)
        if len(self._joins) > _OPEN_REQUESTS:
            self._joins.popitem(last=False)

    def _take_header(self, header: Header) -> None:
        """Requests go on from file to file of one run, if none is missing between them."""
        self._know_file(header)
        last, self._last = self._last, header
        if last is not None and (last.started, last.file + 1) == (header.started, header.file):
            return
        if last is not None and last.started == header.started:
            self._forget()
            return
        self._joins.clear()
        self.report.runs += 1
        self.report.headers = [*self.report.headers, header][-_SHOWN:]

    def _know_file(self, header: Header) -> None:
        """Remember the file. Raises Unreadable when it was read already."""
        key = (header.started, header.file)
        if key in self._files:
            where = self._files[key]
            raise Unreadable(f"{self._name}: file {header.file} of a run, read already in {where}")
        self._files[key] = self._name
        if len(self._files) > _KNOWN_FILES:
            self._files.popitem(last=False)

    def _forget(self) -> None:
        """Something is missing here: no request can be followed over it."""
        self._joins = OrderedDict.fromkeys(self._joins)

    def _part(self, about: Round) -> Tally:
        label = "all" if self._by is None else f"{self._by}={getattr(about, self._by)}"
        parts = self.report.parts
        if label not in parts and len(parts) >= _PARTS:
            label = OTHERS
        return parts.setdefault(label, Tally())


def _after(about: Round) -> Join:
    return Join(
        round_id=about.round_id,
        generation=about.generation,
        position=about.position + about.committed,
    )


def _numbered(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, from 2 on. What a line has past the longest is left out."""
    number = 2
    while line := stream.readline(_LONGEST_LINE):
        yield number, line
        while len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
            line = stream.readline(_LONGEST_LINE)
        number += 1
