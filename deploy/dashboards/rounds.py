"""Panels of what rounds cost and of how K was chosen for them; knows no promise to a client."""

from deploy.dashboards.acceptance import DRAFTING
from deploy.dashboards.panel import Kind, Panel, Query, Section
from deploy.dashboards.promql import gauge, mean, per, rate, ratio, share

__all__ = ["CHOICES", "COSTS"]

_COMMITTED = "tokens_committed_total"

COSTS = Section(
    title="Where the time goes",
    panels=(
        Panel(
            title="Cost shares",
            description="Parts of the rounds' time. Verify should lead. Much draft at a gain near "
            "1: a smaller K or draft model. Much schedule, commit or queue: the host is the limit, "
            "so see the event loop's lag and the CPUs.",
            unit="percentunit",
            queries=(Query(expr=share("round_seconds_total", "part"), legend="{{part}}"),),
            kind=Kind.SHARES,
            top=1.0,
        ),
        Panel(
            title="Time a committed token",
            description="Rounds' time by part over published tokens: sums, not a mean of ratios. "
            "The part that grew is the one to look at.",
            unit="s",
            queries=(
                Query(
                    expr=per(rate("round_seconds_total", "part"), rate(_COMMITTED)),
                    legend="{{part}}",
                ),
            ),
            kind=Kind.STACK,
        ),
        Panel(
            title="Time by rows of the target call",
            description="Share of the rounds' time by the size of the packed call. Time moving to "
            "large calls means more requests at once or long prefills: drafts pay less there.",
            unit="percentunit",
            queries=(Query(expr=share("round_seconds_total", "rows"), legend="{{rows}} rows"),),
            kind=Kind.SHARES,
            top=1.0,
        ),
        Panel(
            title="Time inside model forwards",
            description="Share of the rounds' time spent in the models. Low: the host keeps the "
            "device waiting. Look at the threads, at other load on the machine and at --log-level. "
            "On a GPU it is the device's time for drafting and verification.",
            unit="percentunit",
            queries=(
                Query(
                    expr=ratio(rate("forward_seconds_total"), rate("round_seconds_total")),
                    legend="in forwards",
                ),
            ),
            width=12,
            top=1.0,
        ),
        Panel(
            title="Rows computed",
            description="Rows a second of the target, of the draft, and target rows that gave "
            "logits. Draft rows without accepted tokens are waste; target rows far above logit "
            "rows are prefill.",
            unit="short",
            queries=(Query(expr=rate("rows_total", "kind"), legend="{{kind}}"),),
            width=12,
        ),
    ),
)

CHOICES = Section(
    title="How K is chosen",
    panels=(
        Panel(
            title="K over time",
            description="Rounds of a request by draft length. All at 0 at low load: drafts do not "
            "pay or are dead, see acceptance. Long K at high load: is K fixed by a flag?",
            unit="percentunit",
            queries=(Query(expr=share("spec_rounds_total", "k"), legend="K = {{k}}"),),
            kind=Kind.SHARES,
            top=1.0,
        ),
        Panel(
            title="Mean K, chosen and published",
            description="What the controller chose, what rounds with a result had, and the latter "
            "over rounds with a draft. Published under chosen: drafts end early (min_confidence, "
            "no n-gram found).",
            unit="none",
            queries=(
                Query(expr=mean("controller_k"), legend="chosen"),
                Query(expr=mean("round_k"), legend="published"),
                Query(
                    expr=ratio(rate("round_k_sum"), rate("spec_rounds_total", where=DRAFTING)),
                    legend="published, with a draft",
                ),
            ),
        ),
        Panel(
            title="Why K is what it is",
            description="Choices by reason. memory or rows: cut for want of blocks or of room in "
            "the call. shared_seed: seeds are reused, so drafts would not be exact. slo: raised "
            "for a request's pace. fixed: somebody set it. Mostly kept is the normal state.",
            unit="percentunit",
            queries=(
                Query(expr=share("controller_decisions_total", "reason"), legend="{{reason}}"),
            ),
            kind=Kind.SHARES,
            top=1.0,
        ),
        Panel(
            title="Goodput predicted for the last round",
            description="Tokens a second that the last forecast expects, beside those of rounds "
            "that had one. A forecast that stays high while rounds are slow: see 'Forecasts held "
            "against rounds'.",
            unit="short",
            queries=(
                Query(expr=gauge("controller_goodput_predicted"), legend="predicted"),
                Query(
                    expr=ratio(
                        rate("controller_committed_tokens_total"),
                        rate("controller_round_seconds_total"),
                    ),
                    legend="measured, while decoding",
                ),
            ),
        ),
        Panel(
            title="Load",
            description="Requests in rounds and in the queue. K falls as the first grows; that is "
            "its purpose. A queue that stays is on the operations dashboard.",
            unit="short",
            queries=(
                Query(expr=gauge("requests_running"), legend="running"),
                Query(expr=gauge("requests_waiting"), legend="waiting"),
            ),
        ),
        Panel(
            title="Rows of a target call",
            description="Mean rows of a round by kind. Much prefill: long prompts stretch every "
            "neighbour's round, so lower --max-batched-tokens. Much draft at high load: see K.",
            unit="short",
            queries=(Query(expr=mean("round_rows", "kind"), legend="{{kind}}"),),
            kind=Kind.STACK,
        ),
    ),
)
