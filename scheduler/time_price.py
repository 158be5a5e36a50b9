"""What a second is worth in a round that is not all there is: tokens a second as decoding goes on.

The ratio of one round is its own price of time (Dinkelbach's method) only where all that run emit
in it and nothing else has to be paid.
"""

from collections.abc import Mapping, Sequence

from scheduler.allocation import Candidate, best
from scheduler.controller import LoadView
from scheduler.cost_model import CostModel, RoundCosts

KEEP_PLAIN = 0.02
"""Plain decoding stands unless drafting is better by this share."""


def decode_rate(
    view: LoadView, candidates: Sequence[Candidate], model: CostModel, k_max: int
) -> tuple[float, int]:
    """Tokens a second when all that run decode, and the K that is best for all of them; of the last
    step as many have one as there are rows for."""
    emitters = len(view.requests)
    running = max(view.load.running, emitters)
    context = sum(each.context for each in view.requests) / emitters
    costs = model.decoding(running, context, running * k_max)
    left = view.spare + view.rows - view.prefill_rows - model.frontiers(running)
    best_rate, best_k, tokens = 0.0, 0, float(running)
    drafts, drafting = 0, 0.0
    for k in range(k_max + 1):
        if k:
            able = min(running, left - drafts)
            if able <= 0:
                break
            deep = [each.survivals[k - 1] for each in candidates if len(each.survivals) >= k]
            tokens += able * sum(deep) / max(len(deep), 1)
            drafts += able
            drafting += costs.step[able]
        rate = tokens / costs.seconds(drafts, drafting, k)
        if rate > best_rate * (1.0 if best_k or not k else 1.0 + KEEP_PLAIN):
            best_rate, best_k = rate, k
    return best_rate, best_k


def staggered_rate(
    view: LoadView, candidates: Sequence[Candidate], fixed: Mapping[int, int], costs: RoundCosts
) -> float | None:
    """Tokens a second where some append while the others emit, and the other way round in the next
    round (retained layout); None where all are in step.

    Both rounds yield tokens, so the ratio of one of them and its append would charge time at about
    half its price. Those who append now are taken to draft as these do.
    """
    if not costs.append or not view.rows:
        return None
    plain = costs.alike(0)
    both = 1.0 + view.rows / len(view.requests)
    rate = both * len(view.requests) / plain
    chosen = best(candidates, fixed, costs, rate, rows=view.spare)
    return max(rate, both * chosen.tokens / (plain + both * (chosen.seconds - plain)))
