"""The output law by exact enumeration through the production code (contract 11.1).

Three depths: the sampling functions over injected keys; whole rounds through executor, staging and
ledger, in both layouts; whole lives through scheduler and controller too. A draw lies in the middle
of its interval, where decisions show, or 1e-10 from an end, where a slightly wrong law does.
"""

from collections.abc import Iterator, Sequence
from itertools import permutations, product

import numpy as np
import torch

from scheduler.controller import FixedController
from scheduler.sampling.online import merge, online_law, partial, probabilities
from scheduler.sampling.processors import filtered, row_settings
from scheduler.sampling.processors import law as softmax
from tests.oracles.enumeration import deviation
from tests.oracles.leaves import client, tables
from tests.oracles.lives import LifeLaw
from tests.oracles.policies import follow_acceptance
from tests.oracles.rig import NGRAM, TOKEN
from tests.oracles.rounds import REPLAY, RETAINED, RoundLaw
from tests.oracles.rows import CPU, Table, random_logits
from tests.oracles.scenario import Case, Policy, Scenario, scenario
from tests.oracles.watchers import Follower, Partner, Stumbling
from tests.oracles.worlds import LONG, PACKED, ROWS, VERIFIERS
from tests.prove.proof import Finding, Proof, Scope

LIMIT = 1e-12
SPOTS = {"middle": 0.5, "low end": 1e-10, "high end": 1.0 - 1e-10}
BACK_ENDS = (softmax, online_law(2), online_law(1))
# A life of one round has as many rounds of the engine, with the one that starts it.
STEPS = {REPLAY: 1, RETAINED: 2}


def finding(cases: int, gaps: Sequence[tuple[str, float]], unit: str, note: str = "") -> Finding:
    """What the largest of some named gaps says; the data has them all."""
    worst = max(gap for _, gap in gaps)
    return Finding(
        cases=cases,
        unit=unit,
        worst=worst,
        limit=f"{LIMIT:.0e}",
        holds=worst <= LIMIT,
        note=note,
        rows=tuple((name, f"{gap:.1e}") for name, gap in gaps),
    )


# --- the sampling functions ----------------------------------------------------------------------


def _case(vocabulary: int, seed: int, on_target: str = "plain", on_draft: str = "plain") -> Case:
    rows = [ROWS[on_target], ROWS[on_draft]]
    target, draft = (
        Table(random_logits(1000 * seed + which, vocabulary), prompt_length=2, settings=row)
        for which, row in enumerate(rows)
    )
    stop = frozenset(rows[0].late)
    return Case(target=target, draft=draft, prompt=(vocabulary - 1, 0), stop=stop)


def _at_most(k: int) -> Policy:
    return Policy(length=lambda _r, tokens, _trace: min(k, 6 - len(tokens) - 1))


def _scenarios(rule: str, at: float, scope: Scope) -> Iterator[tuple[str, Scenario]]:
    """Settings of which each has another target and draft law."""
    shape = {"rule": rule, "at": at}
    for k in range(4):
        policy = Policy(length=lambda *_, k=k: k)
        one = _case(2, k)
        yield f"K {k}", scenario(one, policy=policy, rounds=3, horizon=5, **shape)
    for vocabulary, k in ((3, 3), (4, 2)):
        one = _case(vocabulary, 9)
        yield f"{vocabulary} tokens", scenario(one, policy=_at_most(k), **shape)
    follow = Policy(length=follow_acceptance, memory=1)
    yield "follows acceptance", scenario(_case(2, 6), policy=follow, rounds=3, horizon=5, **shape)
    order = list(ROWS)
    for turn, name in enumerate(order):
        others = order if scope is Scope.FULL else [order[(turn + 3) % len(order)]]
        for other in others:
            one = _case(3, 8, name, other)
            yield f"{name} against {other}", scenario(one, policy=_at_most(2), **shape)


def _sampling_functions(scope: Scope) -> Finding:
    gaps, cases = [], 0
    for rule, (spot, at) in product(("token", "block"), SPOTS.items()):
        for name, setting in _scenarios(rule, at, scope):
            found = deviation(setting)
            gaps.append((f"{rule}, {name}, {spot}", found.largest))
            cases += found.outputs
    return finding(cases, gaps, "joint outputs")


# --- rounds through the executor -----------------------------------------------------------------


def _executor(scope: Scope) -> Finding:
    gaps, cases, groups = [], 0, 0
    for each, spot, law in _turns(PACKED if scope is Scope.FAST else PACKED + LONG, scope):
        at = SPOTS[spot]
        rounds = RoundLaw(
            *each.parts(), rounds=each.rounds, at=at, law=law, layouts=(REPLAY, RETAINED)
        )
        gaps.append((f"{each.name}, {spot}", rounds.deviation()))
        cases += rounds.outputs
        groups += rounds.groups
    return finding(cases, gaps, "joint outputs", f"{groups} outcomes of rounds, in both layouts")


def _turns(things: Sequence, scope: Scope) -> Iterator[tuple]:
    """Each at every spot with two back ends; in the fast scope once, with all of them in turn."""
    for turn, each in enumerate(things):
        if scope is Scope.FAST:
            yield each, list(SPOTS)[turn % 3], BACK_ENDS[(turn // 3 + turn) % 3]
        else:
            yield from product([each], SPOTS, BACK_ENDS[:2])


# --- lives through the scheduler -----------------------------------------------------------------


def _lives(scope: Scope) -> Iterator[tuple[str, dict, list, int]]:
    """(name, options, clients, rounds) of engines whose whole lives are enumerated."""
    two, three = tables(2), tables(3)
    long = scope is Scope.FULL
    for verifier in VERIFIERS:
        name = verifier.value
        one = client(verifier, two, max_tokens=8 if long else 6)
        yield f"{name}, follows acceptance", {"controller": Follower}, [one], 5 if long else 3
        pair = [
            client(verifier, two, max_tokens=5 if long else 4),
            client(TOKEN, two, prompt=(1, 0), max_tokens=5 if long else 4),
        ]
        yield f"{name}, follows the neighbour", {"controller": Partner}, pair, 3
        text = client(verifier, three, prompt=(0, 1, 0, 1), proposer=NGRAM, max_tokens=5)
        yield f"{name}, n-grams", {"controller": _two}, [text], 3
        sure = client(verifier, three, min_confidence=0.5, token_ids=frozenset({2}), max_tokens=5)
        yield f"{name}, early stop", {"controller": _two}, [sure], 3
        broken = {"controller": _two, "runner": Stumbling}
        torn = client(verifier, two, max_tokens=5)
        yield f"{name}, rounds break and are retried", broken, [torn], 3


def _two() -> FixedController:
    """Two drafts, whatever happened."""
    return FixedController(2)


def _whole_lives(scope: Scope) -> Finding:
    gaps, cases, lives = [], 0, 0
    every = product(_lives(scope), STEPS)
    for turn, ((name, options, clients, rounds), layout) in enumerate(every):
        spot, law = [*SPOTS][(turn // 2 + turn) % 3], BACK_ENDS[turn % 3]
        vocabulary = len(clients[0].target.expected(clients[0].asked.prompt))
        found = LifeLaw(
            clients,
            tables(vocabulary),
            vocabulary,
            rounds=STEPS[layout] * rounds,
            layout=layout,
            at=SPOTS[spot],
            law=law,
            **options,
        )
        gaps.append((f"{name}, {layout.value}, {spot}", found.deviation()))
        cases += found.outputs
        lives += found.lives
    return finding(cases, gaps, "joint outputs", f"{lives} lives played")


# --- two ways to a law ---------------------------------------------------------------------------


def _kept(scope: Scope) -> Iterator[torch.Tensor]:
    """Kept rows of every kind of filter, [M, V] float64; two of each have no law."""
    chance = np.random.default_rng(5)
    count = 40 if scope is Scope.FULL else 12
    for vocabulary in (1, 2, 3, 7, 64, 1000):
        for row in ROWS.values():
            logits = chance.normal(size=(count, vocabulary)) * 10.0 ** chance.integers(-2, 2)
            logits[chance.random(logits.shape) < 0.2] = -np.inf
            logits[:, chance.integers(vocabulary)] = 1.0
            settings = row_settings(
                temperature=[row.temperature] * count,
                top_k=[row.top_k] * count,
                top_p=[row.top_p] * count,
                min_p=[row.min_p] * count,
                vocabulary=vocabulary,
                device=CPU,
            )
            kept = filtered(torch.from_numpy(logits), settings)
            kept[0, -1], kept[1] = torch.nan, -torch.inf
            yield kept


def _back_ends(scope: Scope) -> Finding:
    """Slices of every width, and three slices merged in every order and from both ends."""
    gaps, cases = [], 0
    for kept in _kept(scope):
        wanted, vocabulary = softmax(kept), kept.shape[1]
        widths = {1, 2, 5, 64} if vocabulary < 100 else {64, 333}
        for width in (*widths, vocabulary):
            found = online_law(width)(kept)
            gaps.append((f"V {vocabulary}, {width} wide", _gap(found, wanted)))
        slices = kept.tensor_split(3, dim=1) if vocabulary > 2 else ()
        wholes = [
            whole
            for one, two, three in permutations(map(partial, slices), 3)
            for whole in (merge(merge(one, two), three), merge(one, merge(two, three)))
        ]
        for whole in wholes:
            found = torch.cat([probabilities(each, whole) for each in slices], dim=1)
            gaps.append((f"V {vocabulary}, merged", _gap(found, wanted)))
        cases += len(kept) * (len(widths) + 1 + len(wholes))
    return finding(cases, gaps, "rows")


def _gap(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference; infinite where only one of two is a number, or only one is 0."""
    if not torch.equal(found.isnan(), wanted.isnan()) or not torch.equal(found > 0, wanted > 0):
        return float("inf")
    return float((found - wanted).abs().nan_to_num().max())


PROOFS = (
    Proof(
        name="enumeration-sampling",
        section="11.1",
        oracle="enumeration over a field of keys",
        run=_sampling_functions,
    ),
    Proof(
        name="enumeration-rounds",
        section="11.1",
        oracle="enumeration through executor, stage, ledger",
        run=_executor,
    ),
    Proof(
        name="enumeration-lives",
        section="11.1",
        oracle="enumeration through the scheduler",
        run=_whole_lives,
    ),
    Proof(
        name="two-laws",
        section="2",
        oracle="softmax against merged slices",
        run=_back_ends,
    ),
)
