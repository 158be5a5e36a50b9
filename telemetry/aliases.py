"""Shows our numbers once more under the `vllm:` names that other tools read literally.

Computed from the `fencepost_` families at each scrape; counts nothing of its own. Names, types and
labels are those of vLLM's own page.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from telemetry.metrics import Metrics

__all__ = ["VllmAliases"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """One family under another name.

    `kept` maps the source's labels that stay to their names in the alias; the others are summed
    over. Samples whose labels equal one of `without` are left out.
    """

    name: str
    type: str
    source: Collector
    documentation: str
    kept: Mapping[str, str] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)


class VllmAliases(Collector):
    """The aliases of one engine; register it after the metrics it reads."""

    def __init__(
        self, registry: CollectorRegistry, metrics: Metrics, *, model_name: str, engine: str = "0"
    ) -> None:
        self._aliases = (
            *_load_aliases(metrics),
            *_request_aliases(metrics),
            *_latency_aliases(metrics),
            *_speculation_aliases(metrics),
        )
        self._labels = {"model_name": model_name, "engine": engine}
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """The families without samples."""
        for alias in self._aliases:
            yield Metric(alias.name, alias.documentation, alias.type)

    def collect(self) -> Iterator[Metric]:
        """The families as they stand now."""
        for alias in self._aliases:
            metric = Metric(alias.name, alias.documentation, alias.type)
            for (suffix, labels), value in _sums(alias).items():
                metric.add_sample(alias.name + suffix, self._labels | dict(labels), value)
            yield metric


def _sums(alias: Alias) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Values by (suffix, kept labels), in the source's order."""
    kept = {"le": "le", **alias.kept}
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
    for family in alias.source.collect():
        for sample in family.samples:
            if any(sample.labels[name] == value for name, value in alias.without.items()):
                continue
            labels = [
                (new, sample.labels[old]) for old, new in kept.items() if old in sample.labels
            ]
            sums[sample.name.removeprefix(family.name), tuple(labels)] += sample.value
    return sums


def _load_aliases(metrics: Metrics) -> Iterable[Alias]:
    load = metrics.load
    yield Alias(
        name="vllm:num_requests_running",
        type="gauge",
        source=load.running,
        documentation="Number of requests in model execution batches.",
    )
    yield Alias(
        name="vllm:num_requests_waiting",
        type="gauge",
        source=load.waiting,
        documentation="Number of requests waiting to be processed.",
    )
    yield Alias(
        name="vllm:kv_cache_usage_perc",
        type="gauge",
        source=load.kv_usage,
        documentation="Share of K/V blocks in use; 1 means all of them.",
    )
    yield Alias(
        name="vllm:num_preemptions",
        type="counter",
        source=metrics.rounds.preemptions,
        documentation="Number of preemptions.",
    )


def _request_aliases(metrics: Metrics) -> Iterable[Alias]:
    yield Alias(
        name="vllm:generation_tokens",
        type="counter",
        source=metrics.rounds.tokens_committed,
        documentation="Number of generated tokens that were published.",
    )
    yield Alias(
        name="vllm:prompt_tokens",
        type="counter",
        source=metrics.requests.prompt_tokens,
        documentation="Number of prompt tokens of requests that ended.",
    )
    yield Alias(
        name="vllm:prefix_cache_queries",
        type="counter",
        source=metrics.prefix_cache.queries,
        documentation="Number of prompt tokens that cached K/V could have spared.",
    )
    yield Alias(
        name="vllm:prefix_cache_hits",
        type="counter",
        source=metrics.prefix_cache.hits,
        documentation="Number of prompt tokens that cached K/V spared.",
    )
    yield Alias(
        name="vllm:request_success",
        type="counter",
        source=metrics.requests.ended,
        documentation="Number of requests that ended, by reason.",
        kept={"outcome": "finished_reason"},
    )


def _latency_aliases(metrics: Metrics) -> Iterable[Alias]:
    requests = metrics.requests
    sources = {
        "time_to_first_token_seconds": (requests.ttft, "Time to first token in seconds."),
        "inter_token_latency_seconds": (requests.inter_token, "Inter-token latency in seconds."),
        "time_per_output_token_seconds": (
            requests.inter_token,
            "The former name of vllm:inter_token_latency_seconds.",
        ),
        "request_time_per_output_token_seconds": (
            requests.tpot,
            "Seconds an output token after the first, one value a request.",
        ),
        "e2e_request_latency_seconds": (requests.total, "Request latency in seconds."),
        "request_queue_time_seconds": (requests.queue, "Time spent waiting in seconds."),
    }
    for name, (source, text) in sources.items():
        yield Alias(name=f"vllm:{name}", type="histogram", source=source, documentation=text)


def _speculation_aliases(metrics: Metrics) -> Iterable[Alias]:
    speculation = metrics.speculation
    yield Alias(
        name="vllm:spec_decode_num_drafts",
        type="counter",
        source=metrics.law.rounds,
        documentation="Number of rounds with at least one draft token.",
        without={"k": "0"},
    )
    yield Alias(
        name="vllm:spec_decode_num_draft_tokens",
        type="counter",
        source=speculation.verified,
        documentation="Number of draft tokens.",
    )
    yield Alias(
        name="vllm:spec_decode_num_accepted_tokens",
        type="counter",
        source=speculation.accepted,
        documentation="Number of accepted draft tokens.",
    )
    yield Alias(
        name="vllm:spec_decode_num_accepted_tokens_per_pos",
        type="counter",
        source=speculation.accepted,
        documentation="Accepted draft tokens by position, counted from 0.",
        kept={"position": "position"},
    )
