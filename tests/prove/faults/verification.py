"""Faults of what stands of a draft and which token follows it. A table; runs nothing."""

from tests.prove.faults.killers import (
    DRAW_TESTS,
    ENUMERATED_LAW,
    ROUND_LAW,
    VERIFY_TESTS,
    WEAK_TEST,
)
from tests.prove.planting import fault

_VERIFY = "scheduler/sampling/verify.py"
_DRAW = "scheduler/sampling/draw.py"

_LEFT = "left = (scale[:, None] * p - q).clamp_(min=0.0)"
_TERMINAL = "return torch.where(rejected[:, None], law, p), empty & rejected"
_BONUS_OF_Q = """last = self._q[(batch.draft_row + batch.k - 1).clamp(min=0)]
        law = torch.where(rejected[:, None] | (batch.k == 0)[:, None], law, last)
        return torch.where((batch.k == 0)[:, None], p, law), empty & rejected"""

VERIFICATION = (
    fault(
        "residual drawn from p itself",
        "residual from raw p",
        _VERIFY,
        (_LEFT, "left = p.clone()"),
        ENUMERATED_LAW,
        ROUND_LAW,
        f"{VERIFY_TESTS}::test_worked_values_of_a_residual",
    ),
    fault(
        "residual drawn from q",
        "from q",
        _VERIFY,
        (_LEFT, "left = q.clone()"),
        ENUMERATED_LAW,
        ROUND_LAW,
    ),
    fault(
        "residual is p where p exceeds q",
        "from a threshold-filtered set",
        _VERIFY,
        (_LEFT, "left = torch.where(scale[:, None] * p > q, p, 0.0)"),
        ENUMERATED_LAW,
        ROUND_LAW,
    ),
    fault(
        "residual of the q row before the rejection",
        "wrong row",
        _VERIFY,
        (
            "q_rows = (batch.draft_row + accepted).clamp(",
            "q_rows = (batch.draft_row + (accepted - 1).clamp(min=0)).clamp(",
        ),
        ENUMERATED_LAW,
        ROUND_LAW,
    ),
    fault(
        "residual of the p row after the rejection",
        "wrong row",
        _VERIFY,
        (
            "law, empty = residual(p, ",
            "law, empty = residual(self._p[batch.target_row + batch.k], ",
        ),
        ENUMERATED_LAW,
        ROUND_LAW,
    ),
    fault(
        "residual under block without the scale P of the accepted length",
        "wrong row",
        _VERIFY,
        (_LEFT, "left = (p - q).clamp_(min=0.0)"),
        ENUMERATED_LAW,
        ROUND_LAW,
    ),
    fault(
        "bonus drawn from the last q row",
        "bonus from q",
        _VERIFY,
        (_TERMINAL, _BONUS_OF_Q),
        ENUMERATED_LAW,
        ROUND_LAW,
    ),
    fault(
        "tests go on past the first rejection under token",
        "testing past the first rejection (token)",
        _VERIFY,
        ("accepted = _leading((accept_uniforms", "accepted = _largest((accept_uniforms"),
        ENUMERATED_LAW,
        ROUND_LAW,
    ),
    fault(
        "tests end at the first rejection under block",
        "",
        _VERIFY,
        ("accepted = _largest((accept_uniforms", "accepted = _leading((accept_uniforms"),
        ENUMERATED_LAW,
        ROUND_LAW,
    ),
    fault(
        "reach probability P in place of h under block",
        "",
        _VERIFY,
        ("bound = torch.where(place == k[:, None], reach[:, 1:], partial)", "bound = reach[:, 1:]"),
        ENUMERATED_LAW,
        ROUND_LAW,
    ),
    fault(
        "P of a prefix not held at 1 under block",
        "",
        _VERIFY,
        ("(reach[-1] * column).clamp(max=1.0)", "(reach[-1] * column)"),
        ENUMERATED_LAW,
        ROUND_LAW,
    ),
    fault(
        "confidence threshold of q used as acceptance",
        "confidence threshold used as acceptance",
        _VERIFY,
        (
            "torch.where(p_draft > 0, (p_draft / q_draft).clamp(max=1.0), 0.0)",
            "(q_draft > 0.4).to(p_draft.dtype)",
        ),
        ENUMERATED_LAW,
        ROUND_LAW,
    ),
    fault(
        "token test with <= in place of <",
        "`<=` for `<`",
        _VERIFY,
        ("_leading((accept_uniforms < bound)", "_leading((accept_uniforms <= bound)"),
        f"{WEAK_TEST}[verify_token]",
    ),
    fault(
        "block test with <= in place of <",
        "`<=` for `<`",
        _VERIFY,
        ("_largest((accept_uniforms < bound)", "_largest((accept_uniforms <= bound)"),
        f"{WEAK_TEST}[verify_block]",
    ),
    fault(
        "draw at u = 0 gives a token without mass",
        "`<=` for `<`",
        _DRAW,
        ("uniforms[:, None] * total, right=True)", "uniforms[:, None] * total)"),
        f"{DRAW_TESTS}::test_no_event_of_zero_weight",
        f"{DRAW_TESTS}::test_equals_a_linear_scan",
    ),
    fault(
        "small residual given up as rounding",
        "",
        _VERIFY,
        ("total <= 4.0 * torch.finfo(p.dtype).eps * scale", "total <= 0.05 * scale"),
        f"{VERIFY_TESTS}::test_a_small_but_real_residual_is_used",
        ENUMERATED_LAW,
        ROUND_LAW,
    ),
)
