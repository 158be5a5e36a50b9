"""What the bench of telemetry's cost found: records, and their text. Measures nothing."""

from dataclasses import dataclass

from tests.bench.figures import Machine, Spread, Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Tokens per second with all telemetry and with none; `ratio` round by round, `total_ratio` of
    all tokens over all seconds. `cpu_ratio` is processor time without over that with telemetry, for
    the same tokens: all threads count, also one that holds nobody up, and neighbours matter less.

    `sink_share` and `scrape_share` are parts of the time with telemetry: inside the sinks, on the
    event loop, and inside scrapes, in a thread beside it.
    """

    concurrency: int
    tokens: int
    full: Spread
    none: Spread
    ratio: Spread
    total_ratio: float
    cpu_ratio: float
    sink_share: float
    sink_microseconds_a_round: float
    scrape_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """The metrics page while `running` requests run, and with nobody: times and sizes."""

    running: int
    busy_seconds: Spread
    idle_seconds: Spread
    page_bytes: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything, as it is written down."""

    date: str
    machine: Machine
    versions: Versions
    rounds: int
    threads: int
    k: int
    prompt_tokens: int
    levels: tuple[Level, ...]
    scrape: Scrape


def render_report(report: Report) -> str:
    """The figures as text."""
    lines = [
        f"{each.concurrency} at once: with telemetry {each.full.median:.1f}, without "
        f"{each.none.median:.1f} tokens/s; ratio {each.ratio.median:.4f} "
        f"({each.ratio.lowest:.3f} to {each.ratio.highest:.3f}), of totals {each.total_ratio:.4f}, "
        f"of processor time {each.cpu_ratio:.4f}; inside the sinks "
        f"{100 * each.sink_share:.2f} % of the time ({each.sink_microseconds_a_round:.0f} us a "
        f"round), inside scrapes {100 * each.scrape_share:.2f} %"
        for each in report.levels
    ]
    scrape = report.scrape
    lines.append(
        f"scrape with {scrape.running} running: {1e3 * scrape.busy_seconds.median:.1f} ms "
        f"(idle {1e3 * scrape.idle_seconds.median:.1f} ms), {scrape.page_bytes} bytes, "
        f"{scrape.samples} samples"
    )
    return "\n".join(lines)
