"""Panels of what the load scripts in deploy/k6 see from outside; knows no other dashboard.

The series come by remote write with `K6_PROMETHEUS_RW_TREND_STATS=p(95),p(99),avg`. Trends keep
the milliseconds that the scripts record.
"""

from deploy.dashboards.panel import Panel, Query, Section, Source

__all__ = ["SECTION"]


def _milliseconds(trend: str) -> tuple[Query, ...]:
    return tuple(
        Query(expr=f"max(k6_llm_{trend}_ms_{stat}) / 1000", legend=stat) for stat in ("p95", "p99")
    )


def _seen(title: str, text: str, trend: str) -> Panel:
    return Panel(
        title=title,
        description=text,
        unit="s",
        queries=_milliseconds(trend),
        width=6,
        source=Source.LOAD,
    )


SECTION = Section(
    title="From outside (only while a load script writes here)",
    panels=(
        _seen(
            "Time to first token, seen by k6",
            "Since the script's start. Far above the server's own: the network, a proxy that "
            "buffers, or a load generator that is too busy itself.",
            "ttft",
        ),
        _seen(
            "Time a token, seen by k6",
            "Since the script's start. Above the server's own: see the event loop's lag on the "
            "operations dashboard.",
            "tpot",
        ),
        Panel(
            title="Answers within SLO, seen by k6",
            description="Share of answers that kept the script's own wishes. Under the server's "
            "share: time is lost between the two.",
            unit="percentunit",
            queries=(Query(expr="avg(k6_llm_slo_good_rate)", legend="within SLO"),),
            width=6,
            top=1.0,
            source=Source.LOAD,
        ),
        Panel(
            title="Tokens received by k6",
            description="Tokens a second of whole answers. Far under the server's committed "
            "tokens: answers are cut off or other clients are there.",
            unit="short",
            queries=(
                Query(expr="sum(rate(k6_llm_tokens_total[$__rate_interval]))", legend="received"),
            ),
            width=6,
            source=Source.LOAD,
        ),
    ),
)
