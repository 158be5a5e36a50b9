"""One set of metrics a test, on a registry of its own."""

import pytest

from telemetry.aliases import VllmAliases
from telemetry.metrics import Metrics, new_registry
from telemetry.sink import PrometheusSink


class Board:
    """Everything that a composition root would build, and short ways to read it."""

    def __init__(self, k_max=4, domains=("code", "chat")):
        self.registry = new_registry()
        self.memory = 4096.0
        self.metrics = Metrics(
            self.registry,
            model="pair",
            k_max=k_max,
            domains=domains,
            device_memory=lambda: self.memory,
            build={"version": "0.1.0", "torch": "2.13.0"},
        )
        VllmAliases(self.registry, self.metrics, model_name="pair", engine="0")
        self.sink = PrometheusSink(self.metrics)

    def value(self, name, **labels):
        """A `fencepost_` sample, None when there is none with exactly these labels."""
        return self._exact(f"fencepost_{name}", labels)

    def samples(self, name):
        """All samples of one name, in page order; asks only the collector that has it."""
        return [
            sample
            for family in self.registry.restricted_registry([name]).collect()
            for sample in family.samples
            if sample.name == name
        ]

    def total(self, name, **labels):
        """Sum of the samples of any name whose labels include these."""
        return sum(self.select(name, **labels))

    def select(self, name, **labels):
        """Values of the samples of any name whose labels include these, in page order."""
        return [
            sample.value for sample in self.samples(name) if labels.items() <= sample.labels.items()
        ]

    def alias(self, name, **labels):
        """A `vllm:` sample."""
        return self._exact(f"vllm:{name}", labels | {"model_name": "pair", "engine": "0"})

    def _exact(self, name, labels):
        found = [sample.value for sample in self.samples(name) if sample.labels == labels]
        return found[0] if found else None


@pytest.fixture
def board():
    """Fresh metrics with K_max 4 and the domains code and chat."""
    return Board()


@pytest.fixture
def anyio_backend():
    """The only event loop that the server runs on."""
    return "asyncio"


def positions(board, family, **labels):
    """Values of one family by draft position, summed over all other labels."""
    sums = [0.0] * board.metrics.k_max
    for sample in board.samples(f"fencepost_{family}_total"):
        if labels.items() <= sample.labels.items():
            sums[int(sample.labels["position"])] += sample.value
    return sums
