"""Texts drawn through the whole engine, and over HTTP, against the serial law: chi-square.

Every seed is fixed, so a run says the same again; a change of the code that moves draws is a new
trial of the same size.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from scheduler.plan import Layout
from scheduler.request import Verifier
from server.settings import Settings
from tests.prove.engine_texts import TabularEngine
from tests.prove.http_texts import Call, texts
from tests.prove.judged import judge
from tests.prove.loopback import serving
from tests.prove.proof import Finding, Proof, Scope
from tests.prove.replies import repeated_seeds, true_logprobs
from tests.prove.sampled import (
    MODEL,
    Setting,
    Tally,
    Way,
    draws_of,
    serial_law,
    settings_of,
)
from tests.prove.tiny_pair import END, VOCABULARY, TinyPair, make_pair

# The chance that a right engine fails one of the two chi-square proofs.
LEVEL = 0.005
# Streams carry one choice after another in pieces, calls without are written at once.
_STREAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is drawn: with which ids, which settings, and in each layout texts of each K, or
    calls of each K with so many `choices`."""

    vocabulary: int
    settings: frozenset[str]
    counts: Mapping[int, int]
    choices: int = 1


_ALL = frozenset(
    {"plain", "cool", "top-k", "top-p", "min-p", "penalties", "bias", "stop", "late stop", "all"}
)
# What is left out in a short run comes again in others, and each cell of a law costs power.
_FEWER = _ALL - {"plain", "cool", "stop"}
_ENGINE = {
    Scope.FAST: Size(vocabulary=3, settings=_FEWER, counts={0: 1500, 1: 9000, 4: 3500, 8: 900}),
    Scope.FULL: Size(vocabulary=4, settings=_ALL, counts={0: 25000, 1: 52000, 4: 36000, 8: 26000}),
}
_HTTP = {
    Scope.FAST: Size(
        vocabulary=VOCABULARY,
        settings=_FEWER,
        counts={0: 5, 1: 20, 4: 20, 8: 10},
        choices=32,
    ),
    Scope.FULL: Size(
        vocabulary=VOCABULARY,
        settings=_ALL,
        counts={0: 60, 1: 120, 4: 120, 8: 60},
        choices=64,
    ),
}
_REPEATED = {
    Scope.FAST: Size(
        vocabulary=VOCABULARY, settings=frozenset({"late stop", "all"}), counts={4: 1}, choices=8
    ),
    Scope.FULL: Size(
        vocabulary=VOCABULARY,
        settings=_ALL - {"cool", "bias"},
        counts={1: 1, 4: 1, 8: 1},
        choices=32,
    ),
}


def through_the_engine(scope: Scope) -> Finding:
    """Both layouts, every setting, verifier, K and drafter, in mixed batches."""
    size = _ENGINE[scope]
    return engine_finding(size, TabularEngine(size.vocabulary))


def engine_finding(size: Size, engine: TabularEngine) -> Finding:
    """The finding on texts of `engine`."""
    settings = _settings(size, end=size.vocabulary - 1)
    laws = {each.name: serial_law(engine.target, each) for each in settings}
    tally = Tally(laws)
    for layout, seed in _layouts():
        draws = draws_of(settings, layout, size.counts, seed)
        tally.add(engine.texts(draws, layout))
    found = judge(tally.fits(), LEVEL)
    return replace(found, rows=(*found.rows, *_drafting(engine.drafted)))


def _drafting(drafted: Counter[tuple[int, int]]) -> Iterator[tuple[str, ...]]:
    """How many rounds verified K drafts, and how many of those they accepted on average."""
    yield ("rounds of K drafts", "rounds", "accepted")
    for k in sorted({k for k, _ in drafted}):
        rounds = Counter({a: count for (each, a), count in drafted.items() if each == k})
        mean = sum(a * count for a, count in rounds.items()) / rounds.total()
        yield (str(k), str(rounds.total()), f"{mean:.2f}")


def over_http(scope: Scope) -> Finding:
    """The same over a real server with a tiny pair, several calls at once, some as streams."""
    size = _HTTP[scope]
    with _pair() as pair:
        logits = pair.logits()
        settings = _settings(size, END)
        laws = {each.name: serial_law(logits, each) for each in settings}
        tally = Tally(laws)
        for layout, seed in _layouts():
            draws = draws_of(settings, layout, size.counts, seed)
            calls = [
                Call(draw=draw, choices=size.choices, stream=number % _STREAMED == 0)
                for number, draw in enumerate(draws)
            ]
            with _server(pair, layout) as url:
                tally.add(texts(url, calls))
    return judge(tally.fits(), LEVEL)


def same_seed_same_text(scope: Scope) -> Finding:
    """Every verifier, K and drafter, asked twice."""
    size = _REPEATED[scope]
    settings = _settings(size, END)
    with _pair() as pair:
        findings = []
        for layout in Layout:
            with _server(pair, layout) as url:
                findings.append(repeated_seeds(url, settings, layout, size.counts, size.choices))
    return _together(findings)


def logprobs_are_the_models(scope: Scope) -> Finding:
    """Every setting, by block verification of 4 drafts."""
    choices = _REPEATED[scope].choices
    settings = settings_of(VOCABULARY, END)
    with _pair() as pair:
        logits = pair.logits()
        findings = []
        for layout in Layout:
            way = Way(verifier=Verifier.BLOCK, k=4, drafter=MODEL, layout=layout)
            with _server(pair, layout) as url:
                findings.append(true_logprobs(url, settings, logits, way, choices))
    return _together(findings)


def _together(findings: Sequence[Finding]) -> Finding:
    """Findings of the same kind as one."""
    first = findings[0]
    return Finding(
        cases=sum(each.cases for each in findings),
        unit=first.unit,
        worst=max(each.worst for each in findings),
        limit=first.limit,
        holds=all(each.holds for each in findings),
        note=first.note,
    )


def _layouts() -> Iterator[tuple[Layout, int]]:
    """Each layout with the first of its seeds, far from those of the others."""
    for number, layout in enumerate(Layout):
        yield layout, number << 32


def _settings(size: Size, end: int) -> tuple[Setting, ...]:
    return tuple(each for each in settings_of(size.vocabulary, end) if each.name in size.settings)


@contextmanager
def _pair() -> Iterator[TinyPair]:
    with tempfile.TemporaryDirectory() as folder:
        yield make_pair(Path(folder))


def _server(pair: TinyPair, layout: Layout) -> AbstractContextManager[str]:
    return serving(
        Settings(
            model=str(pair.target),
            draft_model=str(pair.draft),
            offline=True,
            threads=1,
            layout=layout.value,
            k=4,
            max_model_len=32,
            max_requests=256,
            max_batched_tokens=1024,
            block_size=4,
        )
    )


PROOFS = (
    Proof(
        name="monte-carlo",
        section="11.2",
        oracle="texts through the whole engine against the serial law, chi-square",
        run=through_the_engine,
    ),
    Proof(
        name="monte-carlo-http",
        section="11.2",
        oracle="texts of a tiny Llama over HTTP against the serial law, chi-square",
        run=over_http,
    ),
    Proof(
        name="http-seeds",
        section="7",
        oracle="texts over HTTP against those of the same seed asked again",
        run=same_seed_same_text,
    ),
    Proof(
        name="http-logprobs",
        section="11.2",
        oracle="logprobs over HTTP against float64 transformers",
        run=logprobs_are_the_models,
    ),
)
