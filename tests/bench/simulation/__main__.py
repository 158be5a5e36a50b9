"""The command: runs scenarios of the catalogue, prints the table, writes the figures."""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.bench.simulation.catalogue import Scenario, catalogue
from tests.bench.simulation.measure import EVERY_K, Point, run_arms
from tests.bench.simulation.table import FLOOR, render

_QUICK = 0.25
_MORE_SEEDS = (1, 2)
"""Added to the seed for points below the bar: of all three runs the median counts."""
_Job = tuple[str, int, int, float]
"""Scenario, concurrency, seed, and the share of the time."""


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; 2 when no scenario has such a name."""
    options = _parser().parse_args(arguments)
    wanted = [each for each in catalogue() if not options.only or options.only in each.name]
    if not wanted:
        sys.stderr.write(f"simulation: no scenario is named {options.only}\n")
        return 2
    share = _QUICK if options.quick else 1.0
    jobs = [
        (scenario.name, concurrency, options.seed, share)
        for scenario in wanted
        for concurrency in scenario.concurrencies
        if not options.at or concurrency in options.at
    ]
    with ProcessPoolExecutor(options.workers) as pool:
        points = _run(pool, jobs)
        # Early draws may be unlucky for a controller that knows nothing yet.
        short = [job for job, point in zip(jobs, points, strict=True) if point.worst < FLOOR]
        again = [(*job[:2], job[2] + more, job[3]) for job in short for more in _MORE_SEEDS]
        others = _run(pool, again)
    sys.stdout.write(render(points, others) + "\n")
    if options.json is not None:
        data = [asdict(each) for each in points]
        options.json.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    return 0


def _run(pool: ProcessPoolExecutor, jobs: Sequence[_Job]) -> list[Point]:
    points = []
    for point in pool.map(_job, jobs):
        points.append(point)
        _say(f"{len(points)}/{len(jobs)}", point)
    return points


def run_point(
    scenario: Scenario,
    concurrency: int,
    *,
    seed: int,
    share: float = 1.0,
    fixed: Sequence[int] = EVERY_K,
) -> Point:
    """All arms of one scenario at one concurrency, the fixed ones with these K."""
    world = scenario.world(concurrency, seed=seed, share=share)
    table = (scenario.believed or scenario.truth).table()
    arms = run_arms(world, table, scenario.warm, fixed)
    return Point(scenario=scenario.name, concurrency=concurrency, paced=scenario.paced, arms=arms)


def _job(job: _Job) -> Point:
    name, concurrency, seed, share = job
    scenario = next(each for each in catalogue() if each.name == name)
    return run_point(scenario, concurrency, seed=seed, share=share)


def _say(progress: str, point: Point) -> None:
    over = (
        f"{point.over(point.best_fixed):.3f} of {point.best_fixed}, {point.over('k=0'):.3f} of k=0"
    )
    sys.stderr.write(f"simulation: {progress} {point.scenario} at {point.concurrency}: {over}\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.simulation",
        description="Runs controllers against virtual engines of known costs and acceptance.",
    )
    parser.add_argument("--only", metavar="NAME", help="scenarios whose name contains this")
    parser.add_argument("--at", type=int, action="append", metavar="N", help="this concurrency")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as data too")
    parser.add_argument("--quick", action="store_true", help="a quarter of the time of each")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    parser.add_argument("--workers", type=int, default=1, help="processes (default 1)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
