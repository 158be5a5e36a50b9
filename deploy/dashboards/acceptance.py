"""The dashboard that shows what becomes of drafts: acceptance, survival, and the law of A."""

from deploy.dashboards.panel import Board, Kind, Panel, Query, Section, Source, Step
from deploy.dashboards.promql import mean, rate, ratio, recorded, selector, share

__all__ = ["BOARD", "DRAFTING", "MAX_K"]

MAX_K = 8
"""The longest draft that the panels by position have a line for."""
DRAFTING = 'k!="0"'
"""Rounds of a request that had a draft."""

_REACHED, _ACCEPTED, _ROUNDS = "spec_reached_total", "spec_accepted_total", "spec_rounds_total"
_ONE_MORE = f'{DRAFTING},terminal=~"correction|bonus"'
_BAD_TO_GOOD = (Step(color="red"), Step(color="orange", at=0.3), Step(color="green", at=0.5))


def _alpha(by: str, where: str = "") -> str:
    return ratio(rate(_ACCEPTED, by, where), rate(_REACHED, by, where))


def _survival(position: int) -> str:
    """The product of acceptance up to a position, from 0. It stands only while the position is
    reached: a product over fewer factors would look better than it is."""
    factors = _alpha("position", f'position=~"[0-{position}]"')
    reached = rate(_REACHED, where=f'position="{position}"')
    return f"exp(sum(ln({factors}))) and on () ({reached} > 0)"


def _accepted_by_k() -> str:
    """E[A] at each K, by the counts of A. They are weighted one by one, because PromQL cannot
    compute with the value of a label."""
    counts = range(1, MAX_K + 1)
    rounds = (rate(_ROUNDS, "k, accepted", f'{DRAFTING},accepted="{a}"') for a in counts)
    weighted = " or ".join(f"{a} * {each}" for a, each in zip(counts, rounds, strict=True))
    return ratio(f"sum by (k) ({weighted})", rate(_ROUNDS, "k", DRAFTING))


def _emitted() -> str:
    """E[G] of rounds with drafts: what was accepted, and one more unless a stop cut it off."""
    return ratio(
        f"({rate(_ACCEPTED)} + {rate(_ROUNDS, where=_ONE_MORE)})", rate(_ROUNDS, "", DRAFTING)
    )


def _by(label: str, text: str) -> Panel:
    return Panel(
        title=f"Acceptance by {label}",
        description=text,
        unit="percentunit",
        queries=(Query(expr=_alpha(label), legend=f"{{{{{label}}}}}"),),
        width=6,
        top=1.0,
    )


_GLANCE = Section(
    title="At a glance",
    panels=(
        Panel(
            title="Acceptance at position 0",
            description="Share of first drafts that the target accepts. Under 0.3 drafting hardly "
            "pays: look at 'Acceptance by proposer' to see which drafter it is, then at what was "
            "deployed last. Texts stay right whatever this says.",
            unit="percentunit",
            queries=(Query(expr=_alpha("", 'position="0"'), legend="acceptance"),),
            kind=Kind.STAT,
            width=4,
            height=5,
            top=1.0,
            steps=_BAD_TO_GOOD,
        ),
        Panel(
            title="Tokens a drafting round, E[G]",
            description="Tokens that a request gets from one round with a draft, the target's own "
            "included. At 1 drafts give nothing. If it falls while acceptance stands, K has "
            "fallen: see 'K over time' on the goodput dashboard.",
            unit="none",
            queries=(Query(expr=_emitted(), legend="E[G]"),),
            kind=Kind.STAT,
            width=4,
            height=5,
            steps=(Step(color="red"), Step(color="orange", at=1.2), Step(color="green", at=1.6)),
        ),
        Panel(
            title="Rounds with a draft",
            description="Share of a request's rounds that had a draft. Near 0 the controller "
            "finds that plain decoding is faster: at high load that is right, at low load look at "
            "acceptance and at the reasons on the goodput dashboard.",
            unit="percentunit",
            queries=(
                Query(expr=ratio(rate(_ROUNDS, "", DRAFTING), rate(_ROUNDS)), legend="drafting"),
            ),
            kind=Kind.STAT,
            width=4,
            height=5,
            top=1.0,
        ),
        Panel(
            title="Drafts discarded",
            description="Share of proposed tokens that were not kept. It is the price of E[G]: "
            "high with a high gain is fine, high with a gain under 1 means that K is too long for "
            "this acceptance. Lower --k, or leave it to auto.",
            unit="percentunit",
            queries=(
                Query(
                    expr=f"1 - {ratio(rate(_ACCEPTED), rate('spec_proposed_total'))}",
                    legend="discarded",
                ),
            ),
            kind=Kind.STAT,
            width=4,
            height=5,
            top=1.0,
            steps=(Step(color="green"), Step(color="orange", at=0.6), Step(color="red", at=0.9)),
        ),
        Panel(
            title="Mean draft length K",
            description="Mean K over all rounds, those without a draft included. Compare it with "
            "'Acceptance by position': positions that nearly always fail are not worth proposing.",
            unit="none",
            queries=(Query(expr=mean("round_k"), legend="K"),),
            kind=Kind.STAT,
            width=4,
            height=5,
        ),
        Panel(
            title="Dead drafts",
            description="Firing DeadDraft alerts: a drafter whose tokens are hardly ever accepted. "
            "Follow the alert's runbook: check that the draft belongs to this target, roll the "
            "draft back, or serve with --k 0 until then.",
            unit="none",
            queries=(
                Query(
                    expr='count(ALERTS{alertname="DeadDraft",alertstate="firing",job=~"$job",'
                    'instance=~"$instance"}) or vector(0)',
                    legend="dead",
                ),
            ),
            kind=Kind.STAT,
            width=4,
            height=5,
            steps=(Step(color="green"), Step(color="red", at=1)),
            quiet="no alert fires while drafts are accepted",
            source=Source.RULES,
        ),
    ),
)

_POSITIONS = Section(
    title="By position",
    panels=(
        Panel(
            title="Acceptance by position",
            description="Accepted over reached, by draft position from 0. A position behind the "
            "first rejection counts in neither. All lines down at once: another draft, target or "
            "sampling. Only late ones down: K is too long. A line that ends was not reached.",
            unit="percentunit",
            queries=(Query(expr=_alpha("position"), legend="position {{position}}"),),
            top=1.0,
        ),
        Panel(
            title="Survival by position",
            description="The chance that a draft is accepted up to a position: the product of the "
            "acceptances, which holds over mixed K. The sum of the lines is the E[A] of a long "
            "draft. Where a line is under draft cost / target cost, K should end before it.",
            unit="percentunit",
            queries=tuple(
                Query(expr=_survival(position), legend=f"position {position}")
                for position in range(MAX_K)
            ),
            top=1.0,
        ),
        Panel(
            title="Acceptance by mass",
            description="The same acceptance, estimated from both models' laws rather than from "
            "draws: steadier at low traffic; by block verification it knows nothing of cuts at "
            "stops. If it departs from 'Acceptance by position' for long, the tests do not follow "
            "from the laws: run fencepost explain on an acceptance log.",
            unit="percentunit",
            queries=(
                Query(
                    expr=ratio(
                        rate("spec_acceptance_mass_total", "position"),
                        rate("spec_acceptance_base_total", "position"),
                    ),
                    legend="position {{position}}",
                ),
            ),
            top=1.0,
        ),
        Panel(
            title="From proposed to accepted",
            description="Draft tokens a second: proposed, of published rounds, reached by the "
            "test, accepted. The gap between reached and proposed is what a first rejection throws "
            "away; it grows with K. Verified under proposed: rounds were stale or aborted.",
            unit="short",
            queries=tuple(
                Query(expr=rate(f"spec_{name}_total"), legend=name)
                for name in ("proposed", "verified", "reached", "accepted")
            ),
            width=12,
        ),
        Panel(
            title="Discarded drafts by position",
            description="Proposed but not kept, in tokens a second by position. Wide bands at late "
            "positions are drafts proposed in vain: a smaller K saves draft time.",
            unit="short",
            queries=(
                Query(
                    expr=f"{rate('spec_proposed_total', 'position')} - "
                    f"{rate(_ACCEPTED, 'position')}",
                    legend="position {{position}}",
                ),
            ),
            kind=Kind.STACK,
            width=12,
        ),
    ),
)

_LAW = Section(
    title="Law of A",
    panels=(
        Panel(
            title="Accepted drafts a round",
            description="Rounds with a draft by A, the number of accepted tokens. Much at 0 with "
            "good acceptance later on points to a first position that differs: look at the chat "
            "template and at the tokens after the prompt.",
            unit="percentunit",
            queries=(Query(expr=share(_ROUNDS, "accepted", DRAFTING), legend="A = {{accepted}}"),),
            kind=Kind.SHARES,
            top=1.0,
        ),
        Panel(
            title="E[A] at each K",
            description="Mean accepted drafts of rounds with a given K. Where a longer K adds "
            "nothing, its rows are wasted. K is chosen by acceptance, so do not read survival off "
            "this: easy texts get long drafts.",
            unit="none",
            queries=(Query(expr=_accepted_by_k(), legend="K = {{k}}"),),
        ),
        Panel(
            title="How rounds end",
            description="The token after the accepted prefix: a correction after a rejection, a "
            "bonus after a whole draft, none at a stop, plain without a draft. More stops than "
            "requests that end, or bonuses at zero acceptance, would be a defect.",
            unit="percentunit",
            queries=(Query(expr=share(_ROUNDS, "terminal"), legend="{{terminal}}"),),
            kind=Kind.SHARES,
            top=1.0,
        ),
    ),
)

_WHO = Section(
    title="Whose drafts, for whom",
    panels=(
        _by(
            "proposer",
            "All positions, by where drafts come from. n-grams do well on text that repeats its "
            "prompt and badly elsewhere. A draft model near 0 is dead: roll it back.",
        ),
        _by(
            "policy",
            "All positions, by acceptance rule; at temperature 0 all are greedy. block accepts "
            "more than token, shared_noise a little less. One rule down alone is a defect of it.",
        ),
        _by(
            "prefix",
            "All positions, by tokens before the round. If long texts fall behind, the draft "
            "holds less of them than the target: see --draft-max-len.",
        ),
        _by(
            "domain",
            "All positions, by the domain that requests name (--domains, the rest is 'other'). A "
            "domain that stays low is served as fast with speculation off in its requests.",
        ),
    ),
)

_REPLICAS = Section(
    title="Replicas",
    panels=(
        Panel(
            title="Acceptance at position 0 by replica",
            description="Recorded over 5 minutes. One replica below the others has another draft "
            "or a broken one: compare its build and flags, take it out, restart it.",
            unit="percentunit",
            queries=(
                Query(
                    expr=selector("spec_alpha:ratio_rate5m", 'position="0"', "instance:fencepost_"),
                    legend="{{instance}}",
                ),
            ),
            width=12,
            top=1.0,
            source=Source.RULES,
        ),
        Panel(
            title="Drafts tested by replica",
            description="Draft positions reached a second, recorded over 5 minutes. A replica at 0 "
            "under load does not draft: look at its flags, its controller's reasons and its "
            "start-up log.",
            unit="short",
            queries=(
                Query(expr=recorded("spec_reached:rate5m", "instance"), legend="{{instance}}"),
            ),
            width=12,
            source=Source.RULES,
        ),
    ),
)

BOARD = Board(
    uid="fencepost-acceptance",
    title="Fencepost / Acceptance",
    description="What becomes of drafts. Texts are exact at any acceptance; this is about speed.",
    sections=(_GLANCE, _POSITIONS, _LAW, _WHO, _REPLICAS),
)
