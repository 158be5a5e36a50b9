"""Puts an engine together from its settings and a runner: the one place that knows every part."""

from collections.abc import Callable

from scheduler.book import Book
from scheduler.commit import FaultHook, Ledger, no_faults
from scheduler.config import EngineConfig
from scheduler.controller import Controller, FixedController
from scheduler.coordinate import engine_manifest
from scheduler.costs import CostTable
from scheduler.engine import Engine
from scheduler.goodput import GoodputController
from scheduler.guards import GuardedController, GuardedSink
from scheduler.proposal import Proposer
from scheduler.proposers.draft_model import DraftModelProposer
from scheduler.proposers.ngram import NgramProposer
from scheduler.runner import ModelRunner
from scheduler.scheduler import Scheduler
from scheduler.stats import StatsSink


def build_engine(
    config: EngineConfig,
    runner: ModelRunner,
    *,
    sink: StatsSink,
    clock: Callable[[], float],
    controller: Controller | None = None,
    fault: FaultHook = no_faults,
) -> Engine:
    """An engine that is not started yet. Without a `controller` every K is `config.k`.

    What `sink` or `controller` raises is logged and ends nothing (see `guards`).
    """
    capabilities = runner.capabilities()
    proposers: list[Proposer] = [NgramProposer()]
    if capabilities.draft is not None:
        proposers.append(DraftModelProposer())
    controller = GuardedController(controller or FixedController(config.k))
    scheduler = Scheduler(
        Book(config, Ledger(fault)),
        controller,
        {proposer.kind: proposer for proposer in proposers},
        engine_manifest(capabilities),
    )
    return Engine(
        scheduler=scheduler,
        runner=runner,
        controller=controller,
        sink=GuardedSink(sink),
        clock=clock,
        fault=fault,
    )


def controller_for(config: EngineConfig, costs: CostTable | None) -> Controller:
    """Chooses K by what rounds cost; without a table it is always `config.k`."""
    if costs is None:
        return FixedController(config.k)
    return GoodputController(costs, config.k_max, config.layout)
