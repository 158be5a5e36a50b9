"""Every fault of the contract, planted one at a time: a test must notice each.

Knows which faults there are and what counts as all of them noticed; `planting` does the work.
"""

from collections.abc import Sequence

from tests.prove.faults.drafts import DRAFTS
from tests.prove.faults.packing import PACKING
from tests.prove.faults.randomness import RANDOMNESS
from tests.prove.faults.rows import ROW_RULES
from tests.prove.faults.speedups import SPEEDUPS
from tests.prove.faults.state import STATE
from tests.prove.faults.verification import VERIFICATION
from tests.prove.planting import Fate, Mutation, Plot, Trial, plot
from tests.prove.proof import Finding, Proof, Scope

MUTATIONS: tuple[Mutation, ...] = (
    *VERIFICATION,
    *RANDOMNESS,
    *ROW_RULES,
    *PACKING,
    *DRAFTS,
    *STATE,
    *SPEEDUPS,
)

# The enumerations, as one more test of the copy. They run on tables, so that faults of attention
# are out of their sight.
_PROOFS_FILE = "tests/prove/enumeration.py"
_PROOFS_TEST = "tests/prove/test_planted_enumeration.py"
_OUT_OF_SIGHT = (
    "scheduler/coordinate.py",
    "scheduler/runtime/attention.py",
    "scheduler/runtime/split_attention.py",
    "scheduler/speedup.py",
)
_PROOFS_TEXT = '''"""The enumerations as tests, so that a planted fault may fail them."""

import pytest

from tests.prove.enumeration import PROOFS
from tests.prove.proof import Scope


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: proof.name)
def test_enumeration(proof):
    assert proof.run(Scope.FAST).holds
'''


def prove(scope: Scope, mutations: Sequence[Mutation] = MUTATIONS) -> Finding:
    """Plant each mutation. FAST runs the first killer of each, FULL all of them and the
    enumerations, and tells every test that failed.

    Raises BaselineFailed when a killer fails without any fault.
    """
    with plot() as ground:
        more = _enumerations(ground) if scope is Scope.FULL else ()
        chosen = [_killers(mutation, scope, more) for mutation in mutations]
        ground.check_baseline(list(dict.fromkeys(test for tests in chosen for test in tests)))
        trials = [
            ground.run_trial(mutation, tests, first=scope is Scope.FAST)
            for mutation, tests in zip(mutations, chosen, strict=True)
        ]
    return finding_of(trials)


def finding_of(trials: Sequence[Trial]) -> Finding:
    """What the trials come to: all that was not killed is named with the reason."""
    left = [trial for trial in trials if trial.fate is not Fate.KILLED]
    return Finding(
        cases=len(trials),
        unit="planted faults",
        worst=float(len(left)),
        limit="0",
        holds=not left,
        note="; ".join(map(_named, left)),
        rows=tuple(map(_row, trials)),
    )


def _named(trial: Trial) -> str:
    reason = f" ({trial.told})" if trial.told else ""
    return f"{trial.fate.value}: {trial.mutation.name}{reason}"


def _row(trial: Trial) -> tuple[str, ...]:
    by = ", ".join(trial.by) or trial.fate.value
    return (trial.mutation.name, trial.mutation.file, by, f"{trial.seconds:.1f}")


def _killers(mutation: Mutation, scope: Scope, more: Sequence[str]) -> tuple[str, ...]:
    if scope is Scope.FAST:
        return mutation.killers[:1]
    return mutation.killers if mutation.file in _OUT_OF_SIGHT else (*mutation.killers, *more)


def _enumerations(ground: Plot) -> tuple[str, ...]:
    """A test of the copy that runs the enumerations; none while there are none."""
    if not (ground.tree / _PROOFS_FILE).is_file():
        return ()
    (ground.tree / _PROOFS_TEST).write_text(_PROOFS_TEXT, "utf-8")
    return (_PROOFS_TEST,)


PROOFS = (
    Proof(
        name="mutations",
        section="11.5",
        oracle="every planted fault fails a test that passes without it",
        run=prove,
    ),
)
