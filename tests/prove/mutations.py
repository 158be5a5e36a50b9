"""Every fault of the contract, planted one at a time: a test must notice each.

Knows which faults there are and what counts as all of them noticed; `planting` does the work.
"""

from collections.abc import Sequence

from tests.prove.faults.controlling import CONTROL
from tests.prove.faults.drafts import DRAFTS
from tests.prove.faults.packing import PACKING
from tests.prove.faults.randomness import RANDOMNESS
from tests.prove.faults.rows import ROW_RULES
from tests.prove.faults.speedups import SPEEDUPS
from tests.prove.faults.state import STATE
from tests.prove.faults.verification import VERIFICATION
from tests.prove.planting import Fate, Mutation, Trial, plot
from tests.prove.proof import Finding, Proof, Scope

MUTATIONS: tuple[Mutation, ...] = (
    *VERIFICATION,
    *RANDOMNESS,
    *ROW_RULES,
    *PACKING,
    *DRAFTS,
    *STATE,
    *SPEEDUPS,
    *CONTROL,
)


def prove(scope: Scope, mutations: Sequence[Mutation] = MUTATIONS) -> Finding:
    """Plant each mutation. FAST runs the first killer of each, FULL all of them, and tells every
    test that failed.

    Raises BaselineFailed when a killer fails without any fault.
    """
    first = scope is Scope.FAST
    chosen = [each.killers[:1] if first else each.killers for each in mutations]
    with plot() as ground:
        ground.check_baseline(list(dict.fromkeys(test for tests in chosen for test in tests)))
        trials = [
            ground.run_trial(mutation, tests, first=first)
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


PROOFS = (
    Proof(
        name="mutations",
        section="11.5",
        oracle="every planted fault fails a test that passes without it",
        run=prove,
    ),
)
