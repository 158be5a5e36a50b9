"""Declares the `fencepost_` metrics, in one place, on a registry that is handed in.

Knows names, labels and buckets; what is counted when stands in `telemetry.sink`. Families with a
rule of their own stand beside that rule, in `telemetry.slo`, `telemetry.answers` and
`telemetry.state_bytes`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)

from scheduler.plan import TerminalKind
from scheduler.request import FinishReason, ProposerKind
from scheduler.stats import CommitOutcome, Policy, Reason
from telemetry.answers import HttpMetrics
from telemetry.families import PlainCounter, PositionCounter, WeightedHistogram
from telemetry.prefix_cache import PrefixCacheMetrics
from telemetry.slo import SloMetrics
from telemetry.state_bytes import StateMetrics

__all__ = [
    "OTHER_DOMAIN",
    "PREFIX_BUCKETS",
    "PROPOSERS",
    "ROUND_SIZES",
    "SPECULATION",
    "AcceptanceLogMetrics",
    "ControllerMetrics",
    "LawMetrics",
    "LoadMetrics",
    "Metrics",
    "RequestMetrics",
    "RoundMetrics",
    "SpeculationMetrics",
    "new_registry",
]

PREFIX = "fencepost_"
OTHER_DOMAIN = "other"
PROPOSERS = tuple(kind for kind in ProposerKind if kind is not ProposerKind.NONE)
PREFIX_BUCKETS = ((256, "0-255"), (1024, "256-1023"), (4096, "1024-4095"), (None, "4096+"))
"""(first length that is too long, label value): tokens before the round."""
SPECULATION = ("off", "on")
ROUND_SIZES = (
    *((1, "0-1"), (4, "2-4"), (8, "5-8"), (16, "9-16"), (32, "17-32"), (64, "33-64")),
    *((128, "65-128"), (256, "129-256"), (512, "257-512"), (None, "513+")),
)
"""(last number of rows, label value): target rows of the packed call."""
ROUND_PARTS = ("draft", "verify", "decide", "schedule", "commit", "queue")
ROW_MODELS = ("target", "draft", "logit")
ROW_KINDS = ("prefill", "frontier", "draft")
POOLS = ("target", "draft")
BLOCK_STATES = ("used", "free", "cached")

# Each includes every bound that vLLM's histogram of the same thing has, so that the aliases can
# show the same counts and a dashboard's fixed `le` is found.
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0),
    *(7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0),
    *(15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
ROW_BUCKETS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def new_registry() -> CollectorRegistry:
    """A registry with the metrics of this process. For the whole process, the client library's
    `_created` series are switched off: they would double the page."""
    disable_created_metrics()
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


class SpeculationMetrics:
    """Reach, acceptance and waste by draft position, counted from 0."""

    def __init__(self, registry: CollectorRegistry, k_max: int, domains: Sequence[str]) -> None:
        drafter: dict[str, Sequence[str]] = {"proposer": [kind.value for kind in PROPOSERS]}
        rule = drafter | {"policy": [policy.value for policy in Policy]}
        full = rule | {"domain": domains, "prefix": [label for _, label in PREFIX_BUCKETS]}

        def family(
            name: str, text: str, label_sets: Mapping[str, Sequence[str]], *, runs: bool = True
        ) -> PositionCounter:
            return PositionCounter(
                registry, PREFIX + name, text, label_sets=label_sets, positions=k_max, runs=runs
            )

        self.reached = family(
            "spec_reached", "Draft positions tested, up to the first rejection or stop.", full
        )
        self.accepted = family("spec_accepted", "Draft positions accepted and kept.", full)
        self.proposed = family(
            "spec_proposed",
            "Draft tokens proposed, those of stale and aborted rounds included; a round that broke "
            "inside the model leaves none.",
            drafter,
        )
        self.verified = family(
            "spec_verified", "Draft tokens proposed in rounds that were published.", drafter
        )
        self.mass = family(
            "spec_acceptance_mass",
            "Numerator of the low-variance reach acceptance: by block verification of all rounds "
            "with so many drafts, else of those that reached the position.",
            rule,
            runs=False,
        )
        self.base = family(
            "spec_acceptance_base",
            "Denominator of the low-variance reach acceptance.",
            rule,
            runs=False,
        )


class LawMetrics:
    """The law of A at each K, and of terminals."""

    def __init__(self, registry: CollectorRegistry, k_max: int) -> None:
        self.rounds = PlainCounter(
            registry,
            PREFIX + "spec_rounds",
            "Published rounds of one request by draft length, accepted drafts and terminal.",
            ("k", "accepted", "terminal"),
            (
                (str(k), str(accepted), terminal.value)
                for k in range(k_max + 1)
                for accepted in range(k + 1)
                for terminal in TerminalKind
            ),
        )
        self.round_k = WeightedHistogram(
            registry,
            PREFIX + "round_k",
            "Draft length K of each published round of a request.",
            buckets=range(k_max + 1),
        )


class RoundMetrics:
    """What rounds did and cost."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        counter = partial(_plain, registry)
        self.tokens_committed = counter("tokens_committed", "Tokens published.", "model", [model])
        self.tokens_prefilled = counter("tokens_prefilled", "Prompt rows computed by the target.")
        self.host_syncs = counter("host_syncs", "Host-device synchronisations of rounds.")
        self.residual_fallbacks = counter(
            "residual_fallbacks", "Draws from the target's row because the residual had no mass."
        )
        self.preemptions = counter("preemptions", "Requests that gave their K/V blocks back.")
        self.forward_seconds = counter("forward_seconds", "Time in model forwards (a GPU's own).")
        self.rounds = counter("rounds", "Rounds of the engine.")
        self.round_seconds = PlainCounter(
            registry,
            PREFIX + "round_seconds",
            "Time of rounds, by the target rows of the packed call; the parts add up.",
            ("part", "rows"),
            product(ROUND_PARTS, [rows for _, rows in ROUND_SIZES]),
        )
        self.rows = counter(
            "rows",
            "Rows computed by each model, and target rows that gave logits.",
            "kind",
            ROW_MODELS,
        )
        self.commits = counter(
            "commit",
            "Ends of rounds, one a request.",
            "outcome",
            [each.value for each in CommitOutcome],
        )
        self.round_rows = WeightedHistogram(
            registry,
            PREFIX + "round_rows",
            "Target rows of one round.",
            buckets=ROW_BUCKETS,
            label=("kind", ROW_KINDS),
        )


class ControllerMetrics:
    """How K was chosen, what was expected of it, and what came of it.

    The six counters of `gain` stand for the same rounds, those that `telemetry.gains` compares, and
    bear the names of its fields. By rates: the predicted gain is predicted_plain_seconds /
    predicted_seconds, the measured one plain_seconds / round_seconds.
    """

    def __init__(self, registry: CollectorRegistry, k_max: int) -> None:
        name = PREFIX + "controller_"
        self.k = WeightedHistogram(
            registry,
            name + "k",
            "Draft length chosen for a request's round, after cuts to rows and blocks; round_k "
            "has what was proposed and published.",
            buckets=range(k_max + 1),
        )
        self.decisions = PlainCounter(
            registry,
            name + "decisions",
            "Choices of a draft length, one for each request that emits in a round, by reason.",
            ("reason",),
            [(reason.value,) for reason in Reason],
        )
        self.gain = {
            field: PlainCounter(registry, name + field, text + _COMPARED)
            for field, text in _GAIN_TEXTS.items()
        }
        self.goodput = Gauge(
            name + "goodput_predicted",
            "Tokens a second that the last forecast expects of its round.",
            registry=registry,
        )


_COMPARED = " (rounds with a forecast that only decoded, all of them published)."
_GAIN_TEXTS = {
    "predicted_tokens": "Tokens that forecasts expected",
    "predicted_seconds": "Time that forecasts expected",
    "predicted_plain_seconds": "Time of plain decoding for the expected tokens, by the forecasts; "
    "over predicted_seconds it is the predicted gain",
    "committed_tokens": "Tokens published",
    "round_seconds": "Time measured, in the retained layout with that of appends as forecast",
    "plain_seconds": "Time of plain decoding for the published tokens, by the forecasts; over "
    "round_seconds it is the measured gain",
}


class LoadMetrics:
    """The engine at one moment."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(PREFIX + name, text, registry=registry)

        self.running = gauge("requests_running", "Requests that take part in rounds.")
        self.waiting = gauge("requests_waiting", "Requests in the queue.")
        self.kv_usage = gauge("kv_cache_usage_ratio", "Target K/V blocks in use, 0 to 1.")
        self.kv_blocks = Gauge(
            PREFIX + "kv_blocks", "K/V blocks by state.", ("pool", "state"), registry=registry
        )
        for pool, state in product(POOLS, BLOCK_STATES):
            self.kv_blocks.labels(pool, state)


_DRAFTED = (
    ". speculation: whether any draft was published (off: K was 0, or it ended before), no choice."
)


class RequestMetrics:
    """How requests ended and how long they took."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def seconds(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(PREFIX + name, text, buckets=buckets, registry=registry)

        def by_speculation(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            histogram = Histogram(
                PREFIX + name, text, ("speculation",), buckets=buckets, registry=registry
            )
            for value in SPECULATION:
                histogram.labels(value)
            return histogram

        self.ended = _labelled(
            registry,
            "requests",
            "Requests that ended. abort: the client left; error: the server ended it, also in a "
            "crash and in a drain cut short.",
            "outcome",
            [reason.value for reason in FinishReason],
        )
        self.prompt_tokens = Counter(
            PREFIX + "prompt_tokens", "Prompt tokens of requests that ended.", registry=registry
        )
        self.ttft = by_speculation(
            "request_ttft_seconds",
            "Arrival to first token, observed when the request ends" + _DRAFTED,
            FIRST_TOKEN_BUCKETS,
        )
        self.tpot = by_speculation(
            "request_tpot_seconds", "Time a token after the first" + _DRAFTED, TOKEN_BUCKETS
        )
        self.inter_token = WeightedHistogram(
            registry,
            PREFIX + "inter_token_seconds",
            "Time between publications spread over their tokens; counts tokens.",
            buckets=TOKEN_BUCKETS,
        )
        self.total = seconds("request_seconds", "Arrival to end.", REQUEST_BUCKETS)
        self.queue = seconds("queue_seconds", "Arrival to admission.", REQUEST_BUCKETS)


class AcceptanceLogMetrics:
    """What became of the records for the acceptance log; all zero when none is kept."""

    def __init__(self, registry: CollectorRegistry) -> None:
        records = PlainCounter(
            registry,
            PREFIX + "acceptance_log_records",
            "Records for the acceptance log; dropped ones found its queue full or the log off.",
            ("outcome",),
            [(outcome,) for outcome in ("written", "dropped", "failed")],
        )
        self.written, self.dropped = records.cell("written"), records.cell("dropped")
        self.failed = records.cell("failed")
        self.failures = PlainCounter(
            registry,
            PREFIX + "acceptance_log_failures",
            "Faults of the disk that turned the acceptance log off.",
        ).cell()


class Metrics:
    """All families of one engine. `domains` is the allow-list; the rest is counted as `other`.

    `model` is the name that it is served by. `device_memory` returns bytes and is called at each
    scrape; `build` becomes the labels of `build_info`.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        model: str,
        k_max: int,
        domains: Sequence[str],
        device_memory: Callable[[], float],
        build: Mapping[str, str],
    ) -> None:
        self.model = model
        self.k_max = k_max
        self.domains = tuple(dict.fromkeys((*domains, OTHER_DOMAIN)))
        self.speculation = SpeculationMetrics(registry, k_max, self.domains)
        self.law = LawMetrics(registry, k_max)
        self.rounds = RoundMetrics(registry, model)
        self.state = StateMetrics(registry)
        self.controller = ControllerMetrics(registry, k_max)
        self.load = LoadMetrics(registry)
        self.requests = RequestMetrics(registry)
        self.prefix_cache = PrefixCacheMetrics(registry)
        self.slo = SloMetrics(registry, model)
        self.http = HttpMetrics(registry)
        self.acceptance_log = AcceptanceLogMetrics(registry)
        self.loop_lag = WeightedHistogram(
            registry,
            PREFIX + "event_loop_lag_seconds",
            "How late a timer of the event loop fired, every 50 ms; those that were due while the "
            "loop was frozen count as well.",
            buckets=LAG_BUCKETS,
        )
        memory = Gauge(
            PREFIX + "device_memory_bytes", "Memory held on the device.", registry=registry
        )
        memory.set_function(device_memory)
        Info(PREFIX + "build", "What is running.", registry=registry).info(dict(build))


def _plain(
    registry: CollectorRegistry,
    name: str,
    text: str,
    label: str | None = None,
    values: Sequence[str] = (),
) -> PlainCounter:
    """A counter with one label or none."""
    if label is None:
        return PlainCounter(registry, PREFIX + name, text)
    return PlainCounter(registry, PREFIX + name, text, (label,), [(value,) for value in values])


def _labelled(
    registry: CollectorRegistry, name: str, text: str, label: str, values: Sequence[str]
) -> Counter:
    """A counter with one label, all of whose values exist from the start."""
    counter = Counter(PREFIX + name, text, (label,), registry=registry)
    for value in values:
        counter.labels(value)
    return counter
