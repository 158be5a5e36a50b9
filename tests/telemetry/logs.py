"""Serves requests over tables and keeps the acceptance log of it."""

import copy
import io
import json
from functools import cache, partial
from pathlib import Path

from scheduler.plan import DraftOutcome, Layout
from scheduler.stats import Evidence
from telemetry.acceptance_log import AcceptanceLog
from telemetry.acceptance_log_files import RotatingFile
from telemetry.acceptance_log_lines import LogHeader, header_line, is_header, round_lines
from telemetry.explain import explain
from telemetry.metrics import Metrics, new_registry
from tests.oracles.rig import (
    BLOCK,
    NOISE,
    TARGET,
    TOKEN,
    Letters,
    Rig,
    config,
    expected,
    letters,
    request,
)
from tests.telemetry.rounds import drafted, plain, step

HEADER = LogHeader(
    target="t",
    draft="d",
    dtype="f32",
    layout="replay_frontier",
    server_version="0.1.0",
    started="2026-11-30T01:02:03.004+00:00",
)
BIG = 1 << 30
RETAINED = config(layout=Layout.RETAINED_FRONTIER)


class Shelf:
    """A log in a folder, with its metrics."""

    def __init__(self, folder, *, limit=BIG, kept=4, header=HEADER, file=None, **options):
        self.path = folder / "accept.log"
        self.metrics = Metrics(
            new_registry(), model="m", k_max=8, domains=(), device_memory=lambda: 0.0, build={}
        ).acceptance_log
        self.file = file or RotatingFile(
            self.path,
            limit=limit,
            kept=kept,
            header=partial(header_line, header),
            own=is_header,
        )
        self.log = AcceptanceLog(self.file, self.metrics, domains=("code",), **options)

    def keep(self, steps):
        """Log these rounds, close, and give the names of all files, oldest first."""
        for each in steps:
            self.log.step(each)
        self.log.close()
        return self.files()

    def files(self):
        """Names of the files there are, oldest first."""
        return [str(path) for path in sorted(self.path.parent.glob("accept.log*"), reverse=True)]

    @property
    def counts(self):
        """(written, dropped, failed, failures)."""
        metrics = self.metrics
        cells = (metrics.written, metrics.dropped, metrics.failed, metrics.failures)
        return tuple(int(cell.value) for cell in cells)


def served(*requests, settings=None, **tables):
    """(the rig, the frozen stats of every round) of a served set of requests."""
    rig = Rig(settings, **tables)
    rig.serve(*requests)
    return rig, steps_of(rig)


def steps_of(rig):
    """What the engine would have told its sink."""
    return [
        step(*landed.groups, round_id=plan.round_id)
        for plan, landed in zip(rig.plans, rig.landed, strict=True)
    ]


def records(path):
    """The records of one file, header left out."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    header, *rest = map(json.loads, lines)
    assert header["record"] == "header"
    return rest


def every_rule(**changes):
    """Two requests of each rule, at four draft lengths and under two domains."""
    rules = [(0.0, TOKEN), (1.0, TOKEN), (1.0, BLOCK), (1.0, NOISE)]
    return [
        request(
            number,
            (number, 2),
            **{
                "temperature": temperature,
                "verifier": verifier,
                "k": (2, 4, 3, 8)[number % 4],
                "max_tokens": 24,
                "domain": "code" if number % 2 else "secret",
                **changes,
            },
        )
        for number, (temperature, verifier) in enumerate([*rules, *rules], 1)
    ]


def lines_of(steps):
    """The rounds as one log, line by line, header first."""
    blocks = [
        round_lines(each.round_id, group, group.domain) for each in steps for group in each.groups
    ]
    return [header_line(HEADER, 0), *b"".join(blocks).splitlines(keepends=True)]


def report_of(lines, by=None):
    return explain(["-"], io.BytesIO(b"".join(lines)), by)


def encoded(record):
    return json.dumps(record).encode() + b"\n"


@cache
def mixed_log():
    """Lines of a log with every rule, full acceptances, cuts and rounds without drafts."""
    warm = every_rule(max_tokens=60)
    full = request(9, (5,), temperature=1.0, k=8, max_tokens=30, verifier=BLOCK)
    whole = expected(request(10, (6, 2), max_tokens=20))
    place = next(i for i in range(2, 7) if whole.index(whole[i]) == i)
    text = request(10, (6, 2), k=8, max_tokens=20, text=Letters((letters([whole[place]]),)))
    _, mixed = served(*warm)
    _, sure = served(full, text, draft=TARGET)
    later = [header_line(HEADER, 1), *lines_of(sure)[1:]]
    return [*lines_of(mixed), *later]


class Planted:
    """A log with one round picked out to be spoiled. Its records are dicts, to be changed."""

    def __init__(self, lines):
        self._lines = list(lines)
        self._rounds = {}
        for index, line in enumerate(lines):
            record = json.loads(line)
            if record["record"] == "position":
                key = (record["request"], record["round_id"])
                self._rounds.setdefault(key, (index, []))[1].append(record)

    def rounds(self):
        """(first line, records) of every drafted round; the records are fresh copies."""
        return copy.deepcopy(list(self._rounds.values()))

    def pick(self, wanted):
        """The first round that is wanted, but for a request's last."""
        last = {records[0]["request"]: index for index, records in self._rounds.values()}
        for index, records in self._rounds.values():
            if wanted(records) and last[records[0]["request"]] != index:
                return index, copy.deepcopy(records)
        raise LookupError

    def replaced(self, index, old, new):
        """All lines, with `old` records from line `index` on exchanged for `new`."""
        return [
            *self._lines[:index],
            *(encoded(record) for record in new),
            *self._lines[index + len(old) :],
        ]


def of(policy, length=1, *, refused=True):
    """Rounds of one rule with at least so many positions, the last one refused or not."""

    def wanted(records):
        last = records[-1]
        fits = len(records) >= length and last["accepted"] is not refused
        return last["policy"] == policy and fits and not last["cut"]

    return wanted


def outcome(token=5, **changes):
    """One draft's numbers, exact in binary."""
    fields = {"target_prob": 0.25, "draft_prob": 0.5, "uniform": 0.625, "mass": 0.5, "base": 1.0}
    return DraftOutcome(token=token, **{**fields, "bound": 0.5, **changes})


def decided(k, accepted, *, outcomes=None, token=9, stop=False, **changes):
    """A published round with its evidence."""
    evidence = Evidence(
        generation=3,
        verified=changes.pop("verified", accepted),
        outcomes=outcomes or (outcome(),) * k,
        terminal_token=None if stop else token,
        fallback=changes.pop("fallback", False),
    )
    return drafted(k, accepted, stop=stop, evidence=evidence, **changes)


def plainly(**changes):
    """A published round without drafts, with its evidence."""
    evidence = Evidence(generation=1, verified=0, outcomes=(), terminal_token=9, fallback=False)
    return plain(evidence=evidence, **changes)


def rounds_of(kept):
    """Records of drafted rounds, by (request, round)."""
    rounds = {}
    for each in kept:
        if each["record"] == "position":
            rounds.setdefault((each["request"], each["round_id"]), []).append(each)
    return rounds
