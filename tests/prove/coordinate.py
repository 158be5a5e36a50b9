"""Proofs of contract section 9: a result or a draft of another coordinate is refused by name."""

import json
from dataclasses import replace

from scheduler.coordinate import difference
from scheduler.errors import CommitRejected, ModelRefused
from scheduler.plan import Layout
from scheduler.runtime.admission_checks import check_pair, event_space_digest
from scheduler.staging import stage_round
from tests.oracles.coordinates import coordinate, elsewhere, mutations
from tests.oracles.rig import BLOCK, NGRAM, NOISE, Rig, config, request
from tests.oracles.vocabularies import make_byte_tokenizer, strangers
from tests.prove.proof import Finding, Proof, Scope

ASKED = (
    request(1, (1, 2, 3), temperature=0.8, logit_bias={3: 1.0}, k=3),
    request(2, (4, 5) * 6, proposer=NGRAM, token_ids=frozenset({7})),
    request(3, (6,), temperature=0.8, verifier=NOISE, k=2, min_confidence=0.1),
    request(4, (2, 1) * 20, temperature=0.8, verifier=BLOCK, max_tokens=4),
)


def _records(scope: Scope) -> Finding:
    """Every field of every record that a round names, one at a time."""
    found = [(path, difference(changed, coordinate())) for path, changed in mutations()]
    unnamed = [path for path, told in found if told is None or not told.startswith(path)]
    return _finding(len(found), "fields", unnamed)


def _results(scope: Scope) -> Finding:
    """Every leaf of the manifests of real rounds: staging refuses, names it, and takes the true
    result afterwards."""
    rounds = 4 if scope is Scope.FAST else 40
    tried, unnamed = 0, []
    for layout in Layout:
        rig = Rig(config(layout=layout))
        rig.submit(*ASKED)
        for _ in range(rounds):
            work = rig.plan()
            if work is None:
                break
            plan, jobs = work
            result = rig.runner.run(plan)
            for path in _leaves(json.loads(plan.coordinate.manifest)):
                stale = elsewhere(plan.coordinate, path, "another value")
                tried += 1
                if not _refused(plan, jobs, replace(result, coordinate=stale), _spelt(path)):
                    unnamed.append(_spelt(path))
            rig.land(jobs, stage_round(plan, jobs, result), result)
    return _finding(tried, "leaves", unnamed)


def _drafts(scope: Scope) -> Finding:
    """Drafts whose vocabulary differs by content; and those that differ by padding alone."""
    unnamed = []
    for target, draft, said in strangers():
        same = event_space_digest(target) == event_space_digest(draft)
        try:
            check_pair(target, draft, 300, 300)
        except ModelRefused as refusal:
            if not same and said in str(refusal):
                continue
        unnamed.append(said)
    padded = [(258, 258), (258, 320), (320, 264), (512, 258)]
    for widths in padded:
        report = check_pair(
            make_byte_tokenizer("ab", "cd"), make_byte_tokenizer("ab", "cd"), *widths
        )
        if (report.tokens, report.event_space) != (258, min(widths)):
            unnamed.append(f"padding {widths}")
    return _finding(len(strangers()) + len(padded), "pairs", unnamed)


def _refused(plan, jobs, result, path: str) -> bool:
    try:
        stage_round(plan, jobs, result)
    except CommitRejected as refusal:
        return f"stale result: {path} " in str(refusal)
    return False


def _leaves(value, path=()):
    """Paths of all leaves of a manifest; empty lists and objects are leaves too."""
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts:
        if isinstance(part, dict | list) and part:
            yield from _leaves(part, (*path, key))
        else:
            yield (*path, key)


def _spelt(path) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def _finding(cases: int, unit: str, unnamed: list[str]) -> Finding:
    return Finding(
        cases=cases,
        unit=unit,
        worst=float(len(unnamed)),
        limit="0",
        holds=not unnamed,
        note=f"not refused by name: {unnamed[0]}" if unnamed else "each refused by its name",
        rows=tuple((path,) for path in unnamed),
    )


PROOFS = (
    Proof(
        name="coordinate",
        section="9",
        oracle="field by field mutation of the round coordinate",
        run=_records,
    ),
    Proof(
        name="stale-results",
        section="9",
        oracle="results with one leaf of the coordinate changed, both layouts",
        run=_results,
    ),
    Proof(
        name="admission",
        section="9",
        oracle="vocabularies compared by content",
        run=_drafts,
    ),
)
