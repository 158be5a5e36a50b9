"""Transactions under injected failure: faults, cancels, orders of publication, random lives.

Every case is in both layouts. What is wrong with a case is a list of names; a proof holds when all
lists are empty.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from scheduler.plan import Layout
from tests.oracles.breakage import all_breaks, break_round
from tests.oracles.cancels import all_cancels, cancel_at, cancel_in_the_queue, moments
from tests.oracles.machine import Lives
from tests.oracles.meddling import meddle
from tests.oracles.publications import chain, late_results, mixed_up, orders
from tests.oracles.scenes import KINDS, STYLES
from tests.prove.proof import Finding, Proof, Scope

_LIVES = {Scope.FAST: 100, Scope.FULL: 1000}
_STEPS = {Scope.FAST: 20, Scope.FULL: 40}
_ENGINES = {Scope.FAST: 5, Scope.FULL: 120}


def prove_faults(scope: Scope) -> Finding:
    """Every kind of round breaks at every point, once and twice in a row."""
    cases = all_breaks(KINDS, STYLES)
    if scope is Scope.FAST:
        cases = _spread(cases, 11)
    twins: dict = {}
    return _counted("faults", ((case.name, break_round(case, twins)) for case in cases))


def prove_cancels(scope: Scope) -> Finding:
    """Every kind of round is cancelled at every moment, with and without a fault around it."""
    styles = STYLES if scope is Scope.FULL else STYLES[2:3]
    cases = all_cancels(KINDS, styles)
    if scope is Scope.FAST:
        cases = _spread(cases, 7)
    with _quiet():
        found = [(case.name, cancel_at(case)) for case in cases]
    found += [
        (f"{layout.value} queue", cancel_in_the_queue(layout, in_flight))
        for layout in Layout
        for in_flight in (False, True)
    ]
    return _counted("cancels", found, note=f"{len(moments())} moments")


def prove_orders(scope: Scope) -> Finding:
    """Rounds published in every order, late results, results of something else."""
    full = scope is Scope.FULL
    cases, found = 0, []
    for number, kind in enumerate(KINDS):
        for style in STYLES if full else STYLES[number % 5 : number % 5 + 1]:
            trials = {"late": late_results(kind, style), "mixed": mixed_up(kind, style)}
            if kind.name == "chunk":
                trials["order"] = orders(chain(kind, style), length=4 if full else 3)
            for name, (count, wrong) in trials.items():
                cases += count
                found.append((f"{name} {kind.layout.value} {kind.name} {style.name}", wrong))
    return _counted("publications", found, cases=cases)


def prove_lives(scope: Scope) -> Finding:
    """Random lives beside a reckoning of its own. A life that goes wrong raises, and is told."""
    before = Lives.steps
    with _quiet():
        run_state_machine_as_test(
            Lives,
            settings=settings(
                max_examples=_LIVES[scope],
                stateful_step_count=_STEPS[scope],
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    return Finding(cases=Lives.steps - before, unit="rounds", worst=0.0, limit="0", holds=True)


def prove_engine_cancels(scope: Scope) -> Finding:
    """Clients of the asyncio engine give up while its worker runs, stages and breaks."""
    cases, found = 0, []
    with _quiet():
        for seed in range(_ENGINES[scope]):
            for layout in Layout:
                cancelled, wrong = meddle(seed, layout)
                cases += cancelled
                found.append((f"{layout.value} seed {seed}", wrong))
    return _counted("cancels", found, cases=cases, note=f"{len(found)} engines")


def _spread(cases: Sequence, step: int) -> Sequence:
    """Every `step`-th case. With a step that shares no factor with a matrix's sides, the cases
    that are left go through every value of each."""
    return cases[::step]


def _counted(
    unit: str, found: Iterable[tuple[str, list[str]]], *, cases: int | None = None, note: str = ""
) -> Finding:
    """A finding from (name, what is wrong) pairs; `worst` is the largest number of wrongs."""
    with _quiet():  # the cases are perhaps only run here
        pairs = list(found)
    wrong = [(name, names) for name, names in pairs if names]
    return Finding(
        cases=len(pairs) if cases is None else cases,
        unit=unit,
        worst=float(max((len(names) for _, names in wrong), default=0)),
        limit="0",
        holds=not wrong,
        note=note or (f"first: {wrong[0][0]}" if wrong else ""),
        rows=tuple((name, ", ".join(names)) for name, names in wrong),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """The product logs every fault that is planted."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


PROOFS = (
    Proof(
        name="faults",
        section="6, 11.4",
        oracle="a twin without the fault, field by field",
        run=prove_faults,
    ),
    Proof(
        name="cancels",
        section="6",
        oracle="serial texts, pools and retained rows",
        run=prove_cancels,
    ),
    Proof(
        name="publication",
        section="6, 9",
        oracle="a counter of rounds, pictures before and after",
        run=prove_orders,
    ),
    Proof(
        name="lives",
        section="4, 6, 10",
        oracle="a reckoning from serial texts",
        run=prove_lives,
    ),
    Proof(
        name="engine-cancels",
        section="6",
        oracle="serial texts and an idle engine",
        run=prove_engine_cancels,
    ),
)
