"""Panels that hold a canary against stable; knows only recorded rates and the label `track`."""

from deploy.dashboards.panel import Panel, Query, Section, Source
from deploy.dashboards.promql import ratio, recorded

__all__ = ["TRACKS"]


def _tracks(name: str, numerator: str, denominator: str = "") -> str:
    """A quotient of recorded rates by track."""
    return ratio(recorded(name, "track", numerator), recorded(name, "track", denominator))


def _track_quantile(histogram: str) -> str:
    return f"histogram_quantile(0.95, {recorded(f'{histogram}_bucket:rate5m', 'le, track')})"


TRACKS = Section(
    title="Canary against stable (recorded over 5 minutes, by the target label track)",
    panels=(
        Panel(
            title="Acceptance at position 0 by track",
            description="A canary under 0.9 of stable has a worse draft for these texts: do not "
            "promote it. Without a canary there is one line.",
            unit="percentunit",
            queries=(
                Query(
                    expr=ratio(
                        recorded("spec_accepted:rate5m", "track", 'position="0"'),
                        recorded("spec_reached:rate5m", "track", 'position="0"'),
                    ),
                    legend="{{track}}",
                ),
            ),
            top=1.0,
            source=Source.RULES,
        ),
        Panel(
            title="Requests within SLO by track",
            description="A canary under 0.95, or under stable by more than 0.02, is rolled back. "
            "Mind its traffic: few requests say little.",
            unit="percentunit",
            queries=(
                Query(expr=_tracks("request_slo:rate5m", 'outcome="met"'), legend="{{track}}"),
            ),
            top=1.0,
            source=Source.RULES,
        ),
        Panel(
            title="Gain over plain decoding by track",
            description="A canary that gains less than stable at like load: its draft costs more "
            "or is accepted less. Its cost table may be new: wait for 10 minutes of traffic.",
            unit="none",
            queries=(
                Query(
                    expr=ratio(
                        recorded("controller_plain_seconds:rate5m", "track"),
                        recorded("controller_round_seconds:rate5m", "track"),
                    ),
                    legend="{{track}}",
                ),
            ),
            source=Source.RULES,
        ),
        Panel(
            title="Time to first token by track, p95",
            description="A canary above stable at a like share of traffic is slower to admit or to "
            "prefill: compare their queues.",
            unit="s",
            queries=(Query(expr=_track_quantile("request_ttft_seconds"), legend="{{track}}"),),
            source=Source.RULES,
        ),
        Panel(
            title="Time a token by track, p95",
            description="A canary above stable decodes slower: compare gain and rows a call.",
            unit="s",
            queries=(Query(expr=_track_quantile("request_tpot_seconds"), legend="{{track}}"),),
            source=Source.RULES,
        ),
        Panel(
            title="Failed answers by track",
            description="Share of 5xx among completions and chats. Refusals (503) and probes don't "
            "count: a canary that loads does not fail. Any lasting share on the canary alone rolls "
            "it back.",
            unit="percentunit",
            queries=(
                Query(
                    expr=_tracks(
                        "http_requests:rate5m",
                        'route="generation",status="5xx"',
                        'route="generation"',
                    ),
                    legend="{{track}}",
                ),
            ),
            quiet="a healthy server answers no 5xx",
            source=Source.RULES,
        ),
    ),
)
