"""The command: measures one pair, prints the table, writes data and picture."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from scheduler.errors import ConfigRefused
from tests.bench.k.figures import Report, Settings
from tests.bench.k.measure import measure
from tests.bench.k.options import Options, read_options
from tests.bench.k.plot import draw
from tests.bench.k.studio import prepare
from tests.bench.k.table import render
from tests.bench.machine import describe_machine, describe_versions
from tests.bench.measure import find_pair, use_threads


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; the exit status is 2 when the pair cannot be loaded."""
    options = read_options(arguments)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    machine = describe_machine()
    threads = use_threads(options.threads)
    try:
        source = find_pair(options.pair, options.seed)
        studio = prepare(source, options)
    except (FileNotFoundError, ConfigRefused) as refused:
        sys.stderr.write(f"bench-k: {refused}\n")
        return 2
    measured = measure(source, studio, options)
    report = Report(
        date=date,
        machine=machine,
        versions=describe_versions(),
        settings=_settings(options, threads),
        models=measured.models,
        profile_took=studio.profile_took,
        levels=measured.levels,
        ramp=measured.ramp,
    )
    sys.stdout.write(render(report) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(report), indent=2) + "\n", "utf-8")
    if options.plot is not None:
        draw(report, options.plot)
    return 0


def _settings(options: Options, threads: int) -> Settings:
    return Settings(
        ks=options.ks,
        k_max=options.k_max,
        concurrency=options.concurrency,
        rounds=options.rounds,
        ramps=options.ramps,
        tokens=options.tokens,
        prompt_tokens=options.prompt_tokens,
        per_client=options.per_client,
        least=options.least,
        temperature=options.temperature,
        verifier=options.verifier.value,
        threads=threads,
        seed=options.seed,
        profile_seconds=options.profile_seconds,
        turn=options.turn,
        layout=options.layout.value,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
