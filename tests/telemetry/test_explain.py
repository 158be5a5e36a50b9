"""A log of the engine always checks, and its figures are those of the rounds."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.commit import FaultPoint
from scheduler.stats import CommitOutcome
from telemetry import explain as explaining
from telemetry.explain_figures import wilson
from telemetry.explain_text import as_data, as_text
from tests.oracles.rig import (
    BLOCK,
    DRAFT,
    MODEL,
    NGRAM,
    NOISE,
    TARGET,
    TOKEN,
    Letters,
    Rig,
    request,
)
from tests.telemetry.logs import (
    RETAINED,
    Planted,
    every_rule,
    lines_of,
    mixed_log,
    of,
    report_of,
    served,
    steps_of,
)


@pytest.fixture(scope="module")
def log():
    return mixed_log()


@st.composite
def requests(draw):
    """One to four requests of any rule, length, proposer and stop."""
    made = []
    for number in range(1, draw(st.integers(1, 4)) + 1):
        stops = draw(st.sampled_from([(), ("ab",), ("c", "dd")]))
        made.append(
            request(
                number,
                draw(st.lists(st.integers(0, 15), min_size=1, max_size=12)),
                temperature=draw(st.sampled_from([0.0, 0.7, 1.5])),
                top_k=draw(st.sampled_from([None, 3])),
                verifier=draw(st.sampled_from([TOKEN, BLOCK, NOISE])),
                proposer=draw(st.sampled_from([MODEL, NGRAM])),
                k=draw(st.integers(0, 8)),
                min_confidence=draw(st.sampled_from([0.0, 0.3])),
                seed=draw(st.integers(0, 99)),
                max_tokens=draw(st.integers(1, 16)),
                token_ids=frozenset(draw(st.sets(st.integers(0, 15), max_size=2))),
                text=Letters(stops),
            )
        )
    return made


@settings(deadline=None, max_examples=40)
@given(requests(), st.sampled_from([None, RETAINED]), st.sampled_from([DRAFT, TARGET]))
def test_a_log_of_the_engine_checks(asked, layout, draft):
    rig, steps = served(*asked, settings=layout, draft=draft)
    report = report_of(lines_of(steps))
    assert (report.first, report.status) == ([], 0)
    groups = [group for each in steps for group in each.groups]
    specs = [group.speculation for group in groups if group.speculation is not None]
    parts = report.parts.get("all")
    assert report.requests == len(asked)
    if parts is None:
        assert specs == []
        return
    assert parts.reached == ladder([spec.reached for spec in specs])
    accepted = ladder([spec.accepted for spec in specs])
    assert parts.accepted == accepted + [0] * (len(parts.accepted) - len(accepted))
    assert parts.drafted == sum(spec.k for spec in specs)
    assert parts.kept == sum(spec.accepted for spec in specs)
    assert parts.drafted - parts.kept == sum(loss.drafts for loss in parts.losses.values())
    assert parts.plain == sum(g.speculation is None and g.committed > 0 for g in groups)
    committed = sum(group.committed for group in groups if group.speculation is not None)
    assert sum(law.committed for law in parts.laws.values()) == committed
    assert committed + parts.plain == sum(len(out.tokens) for out in rig.outputs.values())


def ladder(lengths):
    """How many of these runs cover each place."""
    return [sum(length > place for length in lengths) for place in range(max(lengths, default=0))]


def test_figures_by_label_add_up_to_those_of_all():
    _, steps = served(*every_rule())
    lines = lines_of(steps)
    whole = report_of(lines).parts["all"]
    for by in explaining.BY:
        parts = report_of(lines, by).parts
        assert len(parts) > 1
        assert all(label.startswith(f"{by}=") for label in parts)
        assert sum(part.drafted for part in parts.values()) == whole.drafted
        assert sum(part.reached[0] for part in parts.values() if part.reached) == whole.reached[0]
        assert sum(part.plain for part in parts.values()) == whole.plain
    policies = report_of(lines, "policy").parts
    assert {label: part.policies for label, part in policies.items()} == {
        f"policy={name}": {name} for name in ("greedy", "token", "block", "shared_noise")
    }


def test_a_round_that_a_fault_kept_from_being_published():
    broken = []

    def fault(point, number):
        if point is FaultPoint.BEFORE_PUBLICATION and number == 2 and rounds[0] == 2 and not broken:
            broken.append(number)
            raise RuntimeError("not now")

    rounds = [0]
    rig = Rig(fault=fault, draft=TARGET)
    rig.submit(request(1, (1, 2), max_tokens=12), request(2, (3, 4), max_tokens=12))
    while rig.step() is not None:
        rounds[0] += 1
    steps = steps_of(rig)
    aborted = [g for each in steps for g in each.groups if g.outcome is CommitOutcome.ABORTED]
    (lost,) = aborted
    report = report_of(lines_of(steps))
    assert report.status == 0
    assert lost.evidence.verified > 0
    assert report.parts["all"].losses["commit: unpublished"].drafts == lost.evidence.verified


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # The published value for 8 of 10, and the closed forms n / (n + z^2) at the ends.
    [(8, 10, 0.490162, 0.943318), (0, 10, 0.0, 0.277533), (10, 10, 0.722467, 1.0)],
)
def test_wilson_interval(successes, trials, low, high):
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-6)


def test_survival_is_the_product_of_alphas_and_censors():
    """Two rounds of K 1 that were accepted whole say nothing of place 2."""
    _, steps = served(request(1, (1, 2), k=1, max_tokens=21), draft=TARGET)
    _, longer = served(request(2, (5, 2), k=4, max_tokens=24))
    report = report_of([*lines_of(steps), *lines_of(longer)[1:]])
    alphas = list(report.parts["all"].alphas())
    assert alphas[0].reached > alphas[1].reached
    product = 1.0
    for alpha in alphas:
        product *= alpha.accepted / alpha.reached
        assert alpha.survival == pytest.approx(product)
        assert alpha.alpha == alpha.accepted / alpha.reached
        assert alpha.low <= alpha.alpha <= alpha.high
    laws = report.parts["all"].laws
    assert laws[1].accepted[0] == 0
    assert laws[1].rounds >= 10
    assert (laws[1].mean_accepted, laws[1].mean_committed) == (1.0, 2.0)


def test_the_text_and_the_data_say_the_same(log):
    report = report_of(log, "policy")
    shown, data = as_text(report), json.loads(json.dumps(as_data(report)))
    assert "every record checks" in shown
    assert data["status"] == 0
    for label, part in data["parts"].items():
        assert f"== {label} ==" in shown
        for alpha in part["alpha"]:
            assert f"{alpha['reached']:>7}  {alpha['accepted']:>8}  {alpha['alpha']:.3f}" in shown
        lost = part["drafted"] - part["kept"]
        assert f"{lost} of {part['drafted']} drafts were discarded" in shown
    assert "together" not in shown
    assert "block, greedy, shared_noise, token together" in as_text(report_of(log))


def test_nothing_in_a_log_moves_the_cursor(log):
    index, old = Planted(log).pick(of("token"))
    new = [record | {"domain": "\x1b[2J\nspoof"} for record in old]
    shown = as_text(report_of(Planted(log).replaced(index, old, new), "domain"))
    assert "== domain=?[2J?spoof ==" in shown
