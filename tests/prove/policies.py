"""Non-anticipation: policies that bias token and block are seen, exact ones hold (contract 3).

With shared noise every one of them is exact: by enumeration where the laws are of two tokens, and
by the serial text on real noise for all.
"""

from collections.abc import Iterator
from itertools import product

from tests.oracles.enumeration import deviation
from tests.oracles.noise import NoiseEnumeration, played, serial
from tests.oracles.policies import BIASED, EXACT, Example
from tests.prove.enumeration import SPOTS, finding
from tests.prove.proof import Finding, Proof, Scope

SEEN = 0.05
RATIO_RULES = ("token", "block")


def _biased(_scope: Scope) -> Finding:
    """Every biased policy moves the law by more than `SEEN` in total variation."""
    seen, cases = [], 0
    for each, rule in product(BIASED, RATIO_RULES):
        found = deviation(each.under(rule))
        seen.append((f"{each.name}, {rule}", found.total_variation))
        cases += found.outputs
    least = min(size for _, size in seen)
    return Finding(
        cases=cases,
        unit="joint outputs",
        worst=least,
        limit=f"> {SEEN}",
        holds=least > SEEN,
        note=f"{len(BIASED)} policies; the least total variation",
        rows=tuple((name, f"{size:.3f}") for name, size in seen),
    )


def _exact(scope: Scope) -> Finding:
    gaps, cases = [], 0
    for each, rule, (spot, at) in product(EXACT, RATIO_RULES, SPOTS.items()):
        found = deviation(each.under(rule, at))
        gaps.append((f"{each.name}, {rule}, {spot}", found.largest))
        cases += found.outputs
    return finding(cases, gaps, "joint outputs", f"{len(EXACT)} policies")


def _noisy(scope: Scope) -> Iterator[tuple[Example, str, float]]:
    """Examples over two tokens, with the places of their draws."""
    spots = SPOTS.items() if scope is Scope.FULL else [*SPOTS.items()][1:]
    for each, (spot, at) in product((*BIASED, *EXACT), spots):
        if each.noisy:
            yield each, spot, at


def _any_under_noise(scope: Scope) -> Finding:
    gaps, cases = [], 0
    for each, spot, at in _noisy(scope):
        found = deviation(each.under("shared-noise", at), NoiseEnumeration)
        gaps.append((f"{each.name}, {spot}", found.largest))
        cases += found.outputs
    return finding(cases, gaps, "joint outputs", "biased policies too")


def _same_text_under_noise(scope: Scope) -> Finding:
    """Texts on real noise, token by token, as the serial sampler draws them on the same noise."""
    wrong, rows = 0, []
    seeds = range(40 if scope is Scope.FAST else 1000)
    for each in (*BIASED, *EXACT):
        setting = each.under("shared-noise")
        count = sum(played(setting, seed) != serial(setting, seed) for seed in seeds)
        wrong += count
        rows.append((each.name, str(count)))
    return Finding(
        cases=len(seeds) * len(rows),
        unit="texts",
        worst=wrong,
        limit="0",
        holds=not wrong,
        rows=tuple(rows),
    )


PROOFS = (
    Proof(
        name="policies-biased",
        section="3",
        oracle="enumeration over a field of keys",
        run=_biased,
    ),
    Proof(
        name="policies-exact",
        section="3",
        oracle="enumeration over a field of keys",
        run=_exact,
    ),
    Proof(
        name="policies-noise",
        section="3",
        oracle="enumeration over the noise of two tokens",
        run=_any_under_noise,
    ),
    Proof(
        name="policies-noise-texts",
        section="3",
        oracle="serial sampler on the same noise",
        run=_same_text_under_noise,
    ),
)
