"""The exact acceptance rules: which drafts stand and which one token follows them.

Knows laws, drafts and uniforms; nothing of models, processors or stop rules. The batch is
ragged: every request has its own number of drafts k, and its rows lie consecutively in flat
tensors: k + 1 target rows and k draft rows. Results of places past k are 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from scheduler.sampling.draw import inverse_cdf


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftBatch:
    """Drafts of R requests: `drafts` [R, Kmax], `k`, `target_row`, `draft_row` [R]; int64.

    `drafts` is 0 past k. Target row `target_row + i` is the law of draft i (0-based), row
    `target_row + k` that of the bonus; draft row `draft_row + i` is what draft i was drawn from.
    """

    drafts: Tensor
    k: Tensor
    target_row: Tensor
    draft_row: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one verification decided, and what it saw at every place, reached or not.

    `accepted`, `terminal` [R] int64; `fallback` [R] bool: the residual had no mass and the draw
    was made from the target's row. Of [R, Kmax], in the rows' dtype: `bound`, the acceptance
    test is u < bound; `p_draft`, `q_draft`, both laws' probability of the draft; `mass` over
    `base`, the low-variance acceptance (sum of min(p, q) over 1 by token, P_i over P_{i-1} by
    block, the outcome over 1 by match). `choice` [R, Kmax] int64 is the target's own token at each
    place where the rule compares tokens, 0 where it draws uniforms.
    """

    accepted: Tensor
    terminal: Tensor
    fallback: Tensor
    bound: Tensor
    p_draft: Tensor
    q_draft: Tensor
    mass: Tensor
    base: Tensor
    choice: Tensor


def verify_token(
    batch: DraftBatch, p: Tensor, q: Tensor, accept_uniforms: Tensor, terminal_uniforms: Tensor
) -> Verdict:
    """Maximal coupling, place by place (Leviathan et al., arXiv 2211.17192).

    `p` [M, V] and `q` [N, V] are normalised laws of one dtype, `accept_uniforms` [R, Kmax] and
    `terminal_uniforms` [R] float64 in [0, 1). The first rejection ends the run and draws from
    the residual; after k acceptances the draw is from the bonus row.
    """
    rows = _Rows(batch, p, q)
    bound = acceptance_bound(rows.p_draft, rows.q_draft)
    accepted = _leading((accept_uniforms < bound) & rows.inside)
    law, fallback = rows.terminal_law(accepted, p.new_ones(accepted.shape))
    return Verdict(
        accepted=accepted,
        terminal=inverse_cdf(law, terminal_uniforms),
        fallback=fallback,
        bound=bound,
        p_draft=rows.p_draft,
        q_draft=rows.q_draft,
        mass=rows.overlaps(),
        base=rows.inside.to(p.dtype),
        choice=torch.zeros_like(batch.drafts),
    )


def verify_block(
    batch: DraftBatch, p: Tensor, q: Tensor, accept_uniforms: Tensor, terminal_uniforms: Tensor
) -> Verdict:
    """Block verification (Sun et al., arXiv 2403.10444). Arguments as for `verify_token`.

    The accepted length is the largest place whose test passes, so every test is looked at; the
    terminal's residual is scaled by P of the accepted length.
    """
    rows = _Rows(batch, p, q)
    reach = block_reach(rows.p_draft, rows.q_draft)
    bound = block_bounds(reach, rows.surpluses(reach), batch.k)
    accepted = _largest((accept_uniforms < bound) & rows.inside)
    scale = reach.gather(1, accepted[:, None])[:, 0]
    law, fallback = rows.terminal_law(accepted, scale)
    return Verdict(
        accepted=accepted,
        terminal=inverse_cdf(law, terminal_uniforms),
        fallback=fallback,
        bound=bound,
        p_draft=rows.p_draft,
        q_draft=rows.q_draft,
        mass=rows.only_inside(reach[:, 1:]),
        base=rows.only_inside(reach[:, :-1]),
        choice=torch.zeros_like(batch.drafts),
    )


def verify_match(batch: DraftBatch, choices: Tensor) -> Verdict:
    """Accept drafts while they equal the target's own `choices` [M] int64, then take its next.

    For greedy requests (choices are argmaxes, both laws one-hot) and for shared noise (choices
    are races). Floating results are float64; `p_draft` and `bound` are the 0/1 outcome and
    `q_draft` is 1, which for shared noise says nothing of the laws.
    """
    inside = _inside(batch)
    choice = torch.where(inside, choices[_target_rows(batch)], 0)
    matches = (choice == batch.drafts) & inside
    accepted = _leading(matches)
    outcome = matches.to(torch.float64)
    certain = inside.to(torch.float64)
    return Verdict(
        accepted=accepted,
        terminal=choices[batch.target_row + accepted],
        fallback=torch.zeros_like(accepted, dtype=torch.bool),
        bound=outcome,
        p_draft=outcome,
        q_draft=certain,
        mass=outcome,
        base=certain,
        choice=choice,
    )


def acceptance_bound(p_draft: Tensor, q_draft: Tensor) -> Tensor:
    """min(1, p/q), elementwise; 0 wherever p is 0, whatever q is."""
    return torch.where(p_draft > 0, (p_draft / q_draft).clamp(max=1.0), 0.0)


def residual(p: Tensor, q: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Law of the token after a rejection: max(scale p - q, 0), normalised.

    `p`, `q` [R, V], `scale` [R]. Returns the rows [R, V] and a flag [R]: true where what is left
    is within rounding of nothing (4 ulp of `scale`); the row is then `p` itself. In exact
    arithmetic no rejection leads there.
    """
    left = (scale[:, None] * p - q).clamp_(min=0.0)
    total = left.sum(dim=-1)
    empty = total <= 4.0 * torch.finfo(p.dtype).eps * scale
    return torch.where(empty[:, None], p, left / total[:, None]), empty


def block_reach(p_draft: Tensor, q_draft: Tensor) -> Tensor:
    """P_0 = 1 and P_i = min(1, P_{i-1} p_i / q_i), from [R, Kmax]: [R, Kmax + 1].

    P is 0 from the first draft on that the target cannot produce.
    """
    # A ratio past the dtype's range must not meet P = 0 as an infinity.
    largest = torch.finfo(p_draft.dtype).max
    ratio = torch.where(p_draft > 0, (p_draft / q_draft).clamp(max=largest), 0.0)
    reach = [p_draft.new_ones(p_draft.shape[0])]
    for column in ratio.unbind(dim=1):
        reach.append((reach[-1] * column).clamp(max=1.0))
    return torch.stack(reach, dim=1)


def block_bounds(reach: Tensor, surplus: Tensor, k: Tensor) -> Tensor:
    """h_i of block verification for drafts 1 .. Kmax: [R, Kmax], 0 past `k` [R].

    `reach` [R, Kmax + 1] is P_0 .. P_Kmax; `surplus` [R, Kmax] is Z_0 .. Z_{Kmax-1}, the sums of
    max(P_i p_{i+1} - q_{i+1}, 0). h_i = Z_i / (Z_i + 1 - P_i) before the last draft (1 when the
    denominator is 0), and P_k at it.
    """
    inner = pad(surplus[:, 1:], (0, min(1, surplus.shape[1])))
    denominator = inner + (1.0 - reach[:, 1:])
    partial = torch.where(denominator > 0, inner / denominator, 1.0)
    place = torch.arange(1, reach.shape[1], device=reach.device)
    bound = torch.where(place == k[:, None], reach[:, 1:], partial)
    return torch.where(place <= k[:, None], bound, 0.0)


def one_hot_rows(ids: Tensor, vocabulary: int, dtype: torch.dtype) -> Tensor:
    """Laws [n, vocabulary] that are certain of `ids` [n]: the q rows of drafts known before."""
    rows = torch.zeros(ids.shape[0], vocabulary, dtype=dtype, device=ids.device)
    return rows.scatter_(1, ids[:, None], 1.0)


class _Rows:
    """The ragged rows of one batch, seen place by place."""

    def __init__(self, batch: DraftBatch, p: Tensor, q: Tensor) -> None:
        self._batch = batch
        self._p = p
        # One row of zeros stands in where nobody drafted, so that indices stay valid.
        self._q = q if q.shape[0] else p.new_zeros(1, p.shape[1])
        self.inside = _inside(batch)
        places = torch.arange(batch.drafts.shape[1], device=p.device)
        self._p_rows = _target_rows(batch)
        self._q_rows = (batch.draft_row[:, None] + places).clamp_(max=self._q.shape[0] - 1)
        self.p_draft = self.only_inside(p[self._p_rows, batch.drafts])
        self.q_draft = self.only_inside(self._q[self._q_rows, batch.drafts])

    def only_inside(self, values: Tensor) -> Tensor:
        """`values` [R, Kmax], and 0 past each request's k, where another's row was read."""
        return torch.where(self.inside, values, 0.0)

    def overlaps(self) -> Tensor:
        """Sum of min(p, q) at every place: [R, Kmax]."""
        columns = [torch.minimum(p, q).sum(dim=-1) for p, q in self._pairs()]
        return self.only_inside(self._per_place(columns))

    def surpluses(self, reach: Tensor) -> Tensor:
        """Z: sum of max(P_i p_{i+1} - q_{i+1}, 0) for every i < Kmax: [R, Kmax]."""
        scales = reach.unbind(dim=1)
        return self._per_place(
            [
                (scale[:, None] * p).sub_(q).clamp_(min=0.0).sum(dim=-1)
                for scale, (p, q) in zip(scales[:-1], self._pairs(), strict=True)
            ]
        )

    def terminal_law(self, accepted: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Row of the token after `accepted` [R] drafts: [R, V], and the fallback flag [R]."""
        batch = self._batch
        rejected = accepted < batch.k
        p = self._p[batch.target_row + accepted]
        q_rows = (batch.draft_row + accepted).clamp(max=self._q.shape[0] - 1)
        law, empty = residual(p, self._q[q_rows], scale)
        return torch.where(rejected[:, None], law, p), empty & rejected

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        # One place at a time keeps the temporaries at [R, V].
        return [
            (self._p[p_rows], self._q[q_rows])
            for p_rows, q_rows in zip(
                self._p_rows.unbind(dim=1), self._q_rows.unbind(dim=1), strict=True
            )
        ]

    def _per_place(self, columns: list[Tensor]) -> Tensor:
        if not columns:
            return self._p.new_zeros(self._batch.k.shape[0], 0)
        return torch.stack(columns, dim=1)


def _inside(batch: DraftBatch) -> Tensor:
    places = torch.arange(batch.drafts.shape[1], device=batch.k.device)
    return places < batch.k[:, None]


def _target_rows(batch: DraftBatch) -> Tensor:
    """Row of the law of each place; places past k repeat the bonus row."""
    places = torch.arange(batch.drafts.shape[1], device=batch.k.device)
    return batch.target_row[:, None] + torch.minimum(places, batch.k[:, None])


def _leading(passed: Tensor) -> Tensor:
    return passed.to(torch.int64).cumprod(dim=1).sum(dim=1)


def _largest(passed: Tensor) -> Tensor:
    lengths = torch.arange(1, passed.shape[1] + 1, device=passed.device)
    return pad(passed * lengths, (1, 0)).amax(dim=1)
