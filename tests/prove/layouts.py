"""Two layouts, one law: one state, one K and one field of randomness have one successor in both.

And whole engines give one text in both: with every verifier at equal K, and under preemption with
those that promise a text.
"""

import random
from collections.abc import Iterator

from scheduler.config import PoolConfig
from scheduler.plan import Layout
from scheduler.request import Request
from tests.oracles.leaves import client
from tests.oracles.rig import (
    BLOCK,
    DRAFT,
    MODEL,
    NGRAM,
    NOISE,
    NONE,
    TARGET,
    TOKEN,
    Letters,
    Rig,
    config,
    expected,
    request,
)
from tests.oracles.rounds import REPLAY, RETAINED, RoundLaw
from tests.oracles.tabular import near, random_table
from tests.oracles.watchers import Whim
from tests.oracles.worlds import LONG, PACKED, VERIFIERS, Packed, always
from tests.prove.proof import Finding, Proof, Scope


def _cut(logits):
    """Runs cut by stop strings, stop ids and budgets, at every K."""
    return [
        client(
            verifier,
            logits,
            length=always(k),
            max_tokens=2 + k % 3,
            text=Letters(stops=("ba", "cc")),
            token_ids=frozenset({2}) if k % 2 else frozenset(),
            include_stop=k == 3,
        )
        for verifier in VERIFIERS
        for k in range(4)
    ]


def _undrafted(logits):
    """No drafts: in the retained layout a verification without any target row."""
    return [client(verifier, logits, length=always(0)) for verifier in VERIFIERS]


CUT = Packed(name="stop strings, stop ids and budgets", vocabulary=3, worlds=_cut)
UNDRAFTED = Packed(name="no drafts", vocabulary=3, worlds=_undrafted, rounds=3)


def _successors(scope: Scope) -> Finding:
    """States of both layouts, field by field, after every outcome of every draw."""
    cases, wrong, rows = 0, 0, []
    chosen = [each for each in PACKED if "row rules" not in each.name]
    for each in (CUT, UNDRAFTED, *(chosen if scope is Scope.FAST else PACKED + LONG)):
        law = RoundLaw(*each.parts(), rounds=each.rounds, layouts=(REPLAY, RETAINED))
        law.found()
        bad = len(law.differing) + len(law.misplaced)
        rows.append((each.name, f"{law.groups} outcomes", f"{bad} differ"))
        cases, wrong = cases + law.groups, wrong + bad
    return Finding(
        cases=cases,
        unit="successors",
        worst=wrong,
        limit="0",
        holds=not wrong,
        note="each also with the target rows that its layout has",
        rows=tuple(rows),
    )


# --- whole engines -------------------------------------------------------------------------------


def _request(chance: random.Random, number: int, warm: list) -> Request:
    """A request of any kind, with a verifier of `warm` or greedy; its prompt takes more than one
    row, so that both layouts start to draft in the same round."""
    pick = chance.choice
    verifier = pick(warm)
    filters = {
        "top_k": pick([None, None, 3, 8]),
        "top_p": pick([1.0, 0.9]),
        "min_p": pick([0.0, 0.05]),
        "presence_penalty": pick([0.0, 0.5]),
        "frequency_penalty": pick([0.0, 0.3]),
        "repetition_penalty": pick([1.0, 1.2]),
        "logit_bias": pick([{}, {3: 1.0}]),
        "min_tokens": pick([0, 2]),
    }
    return request(
        number,
        [chance.randrange(16) for _ in range(chance.randrange(2, 13))],
        verifier=verifier,
        temperature=pick([0.0, 0.7, 1.0]),
        seed=chance.getrandbits(40),
        max_tokens=chance.randrange(1, 17),
        k=pick([None, 0, 1, 2, 3, 5, 8]),
        proposer=pick([MODEL, MODEL, NGRAM, NONE]),
        min_confidence=pick([0.0, 0.0, 0.3]),
        token_ids=pick([frozenset(), frozenset({5, 9})]),
        text=Letters(stops=pick([(), ("ab",), ("b", "ca")])),
        **(filters if warm != [NOISE] else {}),
    )


def _outputs(layout: Layout, requests: list[Request]) -> list[tuple]:
    rig = Rig(config(layout=layout, max_batched_tokens=400))
    rig.submit(*requests)
    rig.drain()
    outputs = [rig.outputs[each.request_id] for each in requests]
    return [(each.tokens, each.text, each.finish.reason, each.finish.stop) for each in outputs]


def _same_texts(scope: Scope) -> Finding:
    """Engines of both layouts side by side, six requests at once, every verifier."""
    chance, cases, wrong = random.Random(3), 0, 0
    for _ in range(20 if scope is Scope.FAST else 600):
        requests = [_request(chance, number, [TOKEN, BLOCK, NOISE]) for number in range(6)]
        one, other = (_outputs(layout, requests) for layout in (REPLAY, RETAINED))
        cases += sum(len(each[0]) for each in one)
        wrong += sum(a != b for a, b in zip(one, other, strict=True))
    return Finding(cases=cases, unit="tokens", worst=wrong, limit="0", holds=not wrong)


def _engines(chance: random.Random) -> Iterator[Rig]:
    """Engines of both layouts with any policy and any draft over a pool that is far too small."""
    pools = {
        "target_pool": PoolConfig(blocks=chance.randrange(13, 18), block_size=4),
        "draft_pool": PoolConfig(blocks=chance.randrange(3, 9), block_size=8),
        "max_model_len": 48,
        "draft_max_len": 40,
        "max_batched_tokens": chance.randrange(9, 40),
    }
    drafts = [DRAFT, random_table(16, 9), near(TARGET, random_table(16, 7), 0.1)]
    draft, whim = chance.choice(drafts), chance.getrandbits(30)
    for layout in (REPLAY, RETAINED):
        yield Rig(config(layout=layout, **pools), draft=draft, controller=Whim(whim))


def _promised_texts(scope: Scope) -> Finding:
    """Greedy and shared-noise texts against the serial sampler on the same noise."""
    chance, cases, wrong, preempted = random.Random(4), 0, 0, 0
    for _ in range(25 if scope is Scope.FAST else 800):
        requests = [_request(chance, number, [NOISE]) for number in range(6)]
        wanted = [expected(each, context=48) for each in requests]
        for rig in _engines(chance):
            found = rig.serve(*requests)
            cases += sum(map(len, found))
            wrong += sum(a != b for a, b in zip(found, wanted, strict=True))
            preempted += rig.book.preemptions
    return Finding(
        cases=cases,
        unit="tokens",
        worst=wrong,
        limit="0",
        holds=not wrong and preempted > 0,
        note=f"{preempted} preemptions; K by a whim that sees what was drawn before",
    )


PROOFS = (
    Proof(
        name="layouts-successors",
        section="4",
        oracle="one layout against the other, every branch",
        run=_successors,
    ),
    Proof(
        name="layouts-texts",
        section="4",
        oracle="one engine against the other",
        run=_same_texts,
    ),
    Proof(
        name="layouts-promised-texts",
        section="11.1",
        oracle="serial sampler on the same noise",
        run=_promised_texts,
    ),
)
