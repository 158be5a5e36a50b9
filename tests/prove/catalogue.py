"""Which proofs there are, in the order they are run and shown. Knows their names, not their work.

A new module of proofs is one line of `MODULES`.
"""

import importlib
from collections.abc import Sequence

from tests.prove.proof import Finding, Proof, Scope

MODULES = (
    "tests.prove.enumeration",
    "tests.prove.controllers",
    "tests.prove.policies",
    "tests.prove.layouts",
    "tests.prove.coordinate",
    "tests.prove.transactions",
    "tests.prove.mutations",
    "tests.prove.monte_carlo",
    "tests.prove.identity",
)


def find_proofs(modules: Sequence[str] = MODULES) -> tuple[Proof, ...]:
    """The `PROOFS` of each module, in order. A module that cannot be imported, or that has none,
    stands in the list as a proof that raises what went wrong.

    Raises ValueError for a name that two proofs share.
    """
    proofs = tuple(proof for name in modules for proof in _proofs_of(name))
    names = [proof.name for proof in proofs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two proofs are called {twice[0]}")
    return proofs


def _proofs_of(module: str) -> Sequence[Proof]:
    try:
        proofs: tuple[Proof, ...] = importlib.import_module(module).PROOFS
    except Exception as problem:  # noqa: BLE001 - a broken module must not hide the other proofs
        return (_broken(module, problem),)
    return proofs


def _broken(module: str, problem: Exception) -> Proof:
    def _fail(_scope: Scope) -> Finding:
        raise problem

    return Proof(name=module.rpartition(".")[2], section="", oracle=module, run=_fail)
