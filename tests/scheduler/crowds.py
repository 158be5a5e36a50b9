"""Cost tables, views of a load, and the rounds that follow from a decision, all by hand."""

from scheduler.controller import DraftView, LoadView
from scheduler.costs import CostTable, Curve, RoundCurve
from scheduler.request import ProposerKind
from scheduler.stats import Policy, SpeculationStats
from tests.telemetry.rounds import LOAD, drafted, plain, step

FAR = 1 << 14
CONTEXT = 128
KIND = (ProposerKind.DRAFT_MODEL, Policy.TOKEN)


def line(first, slope):
    """`first` at a count of 1, `slope` for each further one."""
    return Curve(points=((1, first), (FAR, first + slope * (FAR - 1))))


def table(*, base=0.010, row=0.0002, step=0.001, step_row=0.0, caught=0.0001):
    """A machine on which a round is `base` for its first row and `row` for every further one."""
    return CostTable(
        context=CONTEXT,
        rounds=tuple(RoundCurve(emitters=n, seconds=line(base, row)) for n in (1, 64)),
        step=line(step, step_row),
        catch_up=line(step, caught),
    )


def seen(request, **changes):
    """One request of a view, well on its way, whose K is free."""
    given = {
        "asked": None,
        "room": 4,
        "policy": Policy.TOKEN,
        "proposer": ProposerKind.DRAFT_MODEL,
        "lag": 0,
        "context": CONTEXT,
        "emitted": 100,
        "left": 100,
    }
    return DraftView(request=request, **{**given, **changes})


def view(*requests, prefill_rows=0, spare=1 << 10):
    """A load of these requests, with so many rows of prefill beside, and `spare` for drafts."""
    rows = len(requests) + prefill_rows
    return LoadView(requests=requests, rows=rows, prefill_rows=prefill_rows, spare=spare, load=LOAD)


def group(request, k, masses=None, **changes):
    """A published round of a request that drafted `k` tokens, all accepted; with `masses` as many
    positions as it names were reached."""
    changes = {"request": request, "position": CONTEXT, **changes}
    if not k:
        return plain(**changes)
    masses = (1.0,) * k if masses is None else tuple(masses)
    speculation = SpeculationStats(
        k=k, accepted=k, reached=len(masses), mass=masses, base=(1.0,) * len(masses)
    )
    return drafted(k, k, speculation=speculation, **changes)


def took(seconds, *groups, extra=0, **changes):
    """A round of these groups that took `seconds`; `extra` further draft rows."""
    drafts = [0 if each.speculation is None else each.speculation.k for each in groups]
    given = {
        "round_seconds": seconds,
        "target_rows": len(groups) + sum(drafts),
        "draft_rows": extra + sum(drafts),
    }
    return step(*groups, **{**given, **changes})


def truth(costs, ks, *, context=CONTEXT):
    """What a round of these K takes by a table: target rows, then one draft step a depth."""
    depths = (sum(k > depth for k in ks) for depth in range(max(ks, default=0)))
    seconds = costs.round(len(ks), len(ks) + sum(ks), context)
    return seconds + sum(costs.draft_step(count, context) for count in depths)
