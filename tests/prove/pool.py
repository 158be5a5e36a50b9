"""Runs proofs several at a time, each in a process that finds it again by its name.

Knows processes; nothing of what is proven or of how it is shown.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import torch

from tests.prove.catalogue import find_proofs
from tests.prove.proof import Proof, Scope
from tests.prove.report import Outcome
from tests.prove.run import run_proof

# Tiny kernels, many of them: a second thread costs more than it brings, and the bits stay the same
# on every machine.
THREADS = 1


def run_proofs(proofs: Sequence[Proof], scope: Scope, workers: int) -> tuple[Outcome, ...]:
    """What `proofs` came to, in their order; with more than one worker they are those of
    `find_proofs`. Whoever waits sees which one is begun."""
    if workers == 1:
        _use_threads()
        return tuple(_tell_and_run(proof, scope) for proof in proofs)
    # Forked threads of torch would hang.
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_use_threads) as pool:
        return tuple(pool.map(partial(_run_named, scope), [proof.name for proof in proofs]))


def _use_threads() -> None:
    torch.set_num_threads(THREADS)


def _run_named(scope: Scope, name: str) -> Outcome:
    found = {proof.name: proof for proof in find_proofs()}
    return _tell_and_run(found[name], scope)


def _tell_and_run(proof: Proof, scope: Scope) -> Outcome:
    sys.stderr.write(f"proving {proof.name} ...\n")
    sys.stderr.flush()
    return run_proof(proof, scope)
