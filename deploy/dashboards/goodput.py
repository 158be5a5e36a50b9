"""The dashboard that shows what speculation is worth: tokens, promises kept, and time saved."""

from deploy.dashboards.client import SECTION as SEEN_FROM_OUTSIDE
from deploy.dashboards.panel import Board, Kind, Panel, Query, Section, Step
from deploy.dashboards.promql import highest, mean, quantile, rate, ratio
from deploy.dashboards.rounds import CHOICES, COSTS

__all__ = ["BOARD"]

_COMMITTED, _GOODPUT = "tokens_committed_total", "tokens_goodput_total"
_SLO, _MET = "request_slo_total", 'outcome="met"'
_SPEED_STEPS = (Step(color="red"), Step(color="orange", at=1.0), Step(color="green", at=1.05))
_MEASURED = ratio(
    rate("controller_plain_seconds_total"),
    rate("controller_round_seconds_total"),
)
_PREDICTED = ratio(
    rate("controller_predicted_plain_seconds_total"),
    rate("controller_predicted_seconds_total"),
)


def _quantiles(histogram: str) -> tuple[Query, ...]:
    return tuple(
        Query(expr=quantile(q, histogram), legend=f"p{round(100 * q)}") for q in (0.5, 0.95, 0.99)
    )


def _promise(kind: str) -> Query:
    """The server's default wish, as a line of its own."""
    return Query(
        expr=highest("slo_seconds", where=f'kind="{kind}"'), legend="SLO (default)", limit=True
    )


_GLANCE = Section(
    title="At a glance",
    panels=(
        Panel(
            title="Requests within SLO",
            description="Share of ended requests that kept all of their wishes for time to first "
            "token and time a token; one without a wish counts as kept. Under 0.95 see 'Outcomes' "
            "for which wish is missed: ttft_miss is the queue, tpot_miss is the batch.",
            unit="percentunit",
            queries=(Query(expr=ratio(rate(_SLO, where=_MET), rate(_SLO)), legend="within SLO"),),
            kind=Kind.STAT,
            width=4,
            height=5,
            top=1.0,
            steps=(Step(color="red"), Step(color="orange", at=0.9), Step(color="green", at=0.95)),
        ),
        Panel(
            title="Goodput",
            description="Tokens a second of requests that ended within their wishes. If it falls "
            "while committed tokens stand, work is done that comes too late: shed load or add "
            "replicas.",
            unit="short",
            queries=(Query(expr=rate(_GOODPUT), legend="tokens/s"),),
            kind=Kind.STAT,
            width=4,
            height=5,
        ),
        Panel(
            title="Committed tokens",
            description="Tokens a second that were published. If it falls with requests waiting, "
            "rounds have become slow: see the cost shares below. Without requests it is 0.",
            unit="short",
            queries=(Query(expr=rate(_COMMITTED), legend="tokens/s"),),
            kind=Kind.STAT,
            width=4,
            height=5,
        ),
        Panel(
            title="Gain over plain decoding, measured",
            description="Time that plain decoding would have taken, by the cost table, over the "
            "time that rounds took. Under 1 speculation costs more than it brings: see 'Gain' and "
            "the runbook of SpeculationSlowerThanBaseline. Serve with --k 0 if it lasts.",
            unit="none",
            queries=(Query(expr=_MEASURED, legend="gain"),),
            kind=Kind.STAT,
            width=4,
            height=5,
            steps=_SPEED_STEPS,
        ),
        Panel(
            title="Time to first token, p95",
            description="Arrival to first token. High with requests waiting: the queue, see the "
            "operations dashboard. High without: long prompts, see 'Rows of a target call'.",
            unit="s",
            queries=(Query(expr=quantile(0.95, "request_ttft_seconds"), legend="p95"),),
            kind=Kind.STAT,
            width=4,
            height=5,
        ),
        Panel(
            title="Time a token, p95",
            description="Time a token after the first, by request. High: too many rows in a round, "
            "or drafts that do not pay. See 'Time a committed token' for the part that grew.",
            unit="s",
            queries=(Query(expr=quantile(0.95, "request_tpot_seconds"), legend="p95"),),
            kind=Kind.STAT,
            width=4,
            height=5,
        ),
    ),
)

_TOKENS = Section(
    title="Tokens",
    panels=(
        Panel(
            title="Proposed, committed, goodput",
            description="Tokens a second: proposed by drafts, published, published within SLO. "
            "Goodput is counted when a request ends, so it trails. Proposed far above committed "
            "with a gain under 1: drafts are too long.",
            unit="short",
            queries=(
                Query(expr=rate("spec_proposed_total"), legend="proposed"),
                Query(expr=rate(_COMMITTED), legend="committed"),
                Query(expr=rate(_GOODPUT), legend="goodput"),
            ),
            width=12,
        ),
        Panel(
            title="Committed tokens from drafts",
            description="Share of published tokens that were drafted. It follows acceptance and K; "
            "if it falls alone, more rounds go without a draft: see 'Why K is what it is'.",
            unit="percentunit",
            queries=(
                Query(
                    expr=ratio(rate("spec_accepted_total"), rate(_COMMITTED)), legend="from drafts"
                ),
            ),
            width=6,
            top=1.0,
        ),
        Panel(
            title="Committed tokens by model",
            description="Tokens a second by the model's public name. A name that is missing is "
            "not served: look at the targets on the operations dashboard.",
            unit="short",
            queries=(Query(expr=rate(_COMMITTED, "model"), legend="{{model}}"),),
            kind=Kind.STACK,
            width=6,
        ),
    ),
)

_PROMISES = Section(
    title="Promises",
    panels=(
        Panel(
            title="Outcomes",
            description="Ended requests a second by what became of their wishes. Only ttft_miss: "
            "requests wait too long, add replicas. Only tpot_miss: rounds are too large, lower "
            "the number of running requests. Errors: see the log. Cancelled ones are left out.",
            unit="reqps",
            queries=(Query(expr=rate(_SLO, "outcome"), legend="{{outcome}}"),),
            kind=Kind.STACK,
            width=12,
            colors={
                "met": "green",
                "ttft_miss": "yellow",
                "tpot_miss": "orange",
                "both": "purple",
                "error": "red",
            },
        ),
        Panel(
            title="Requests within SLO over time",
            description="The share behind the first number of this page; GoodputDrop fires under "
            "0.9. Compare the moment of a fall with the annotations for restarts and alerts.",
            unit="percentunit",
            queries=(Query(expr=ratio(rate(_SLO, where=_MET), rate(_SLO)), legend="within SLO"),),
            width=12,
            top=1.0,
            steps=(Step(color="red"), Step(color="transparent", at=0.9)),
        ),
        Panel(
            title="Time to first token",
            description="Quantiles by request, and the server's default wish if it has one. "
            "p50 under the line and p99 over it: bursts. All over it: too little capacity.",
            unit="s",
            queries=(*_quantiles("request_ttft_seconds"), _promise("ttft")),
        ),
        Panel(
            title="Time a token",
            description="Quantiles by request of the time after the first token, and the "
            "server's default wish if it has one. If p50 is over the line, no request is served as "
            "promised: admit fewer at once.",
            unit="s",
            queries=(*_quantiles("request_tpot_seconds"), _promise("tpot")),
        ),
        Panel(
            title="Time between tokens",
            description="By token: a round's time spread over what it published. p99 far above "
            "p50 means stalls: long prefills in the same rounds, or a late event loop.",
            unit="s",
            queries=_quantiles("inter_token_seconds"),
        ),
        Panel(
            title="Time a token with and without drafts",
            description="Mean over requests that drafted and those that did not: an outcome, no "
            "choice. 'off' has short answers and those where K came out 0, so the difference is no "
            "measure of the gain; 'on' above 'off' for long is a reason to look at it.",
            unit="s",
            queries=(
                Query(
                    expr=mean("request_tpot_seconds", "speculation"),
                    legend="speculation {{speculation}}",
                ),
            ),
            width=12,
        ),
        Panel(
            title="Whole requests",
            description="Arrival to end of requests that ended by themselves. It grows with the "
            "length of answers; read it beside the time a token.",
            unit="s",
            queries=_quantiles("request_seconds"),
            width=12,
        ),
    ),
)

_GAIN = Section(
    title="What speculation is worth",
    panels=(
        Panel(
            title="Gain over plain decoding",
            description="Measured: plain decoding's time for what was published, over the time "
            "taken. Predicted: what the controller expected. Measured under predicted for long: "
            "the cost table is off, so start again with an empty cost cache. Both under 1: --k 0.",
            unit="none",
            queries=(
                Query(expr=_MEASURED, legend="measured"),
                Query(expr=_PREDICTED, legend="predicted"),
            ),
            steps=(Step(color="red"), Step(color="transparent", at=1.0)),
        ),
        Panel(
            title="Forecasts held against rounds",
            description="Tokens and time that rounds took over those expected; 1 is right. Time "
            "over 1.2: the machine is slower than when it was profiled (neighbours, clocks). "
            "Tokens under 0.8: texts have become harder to draft.",
            unit="none",
            queries=(
                Query(
                    expr=ratio(
                        rate("controller_committed_tokens_total"),
                        rate("controller_predicted_tokens_total"),
                    ),
                    legend="tokens",
                ),
                Query(
                    expr=ratio(
                        rate("controller_round_seconds_total"),
                        rate("controller_predicted_seconds_total"),
                    ),
                    legend="time",
                ),
            ),
        ),
        Panel(
            title="Time saved",
            description="Seconds of plain decoding saved in each second. Below 0 speculation takes "
            "time away: see the gain beside it.",
            unit="none",
            queries=(
                Query(
                    expr=f"{rate('controller_plain_seconds_total')} - "
                    f"{rate('controller_round_seconds_total')}",
                    legend="saved",
                ),
            ),
            bottom=None,
        ),
    ),
)

BOARD = Board(
    uid="fencepost-goodput",
    title="Fencepost / Goodput",
    description="What speculation is worth: tokens, promises kept, time saved, and why K is so.",
    sections=(_GLANCE, _TOKENS, _PROMISES, _GAIN, COSTS, CHOICES, SEEN_FROM_OUTSIDE),
)
