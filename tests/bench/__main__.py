"""The command: measures each pair in a fresh process, prints the table, writes the data."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from scheduler.errors import ConfigRefused
from tests.bench.figures import Report, Settings
from tests.bench.machine import describe_machine, describe_versions
from tests.bench.measure import find_pair, measure_pair, use_threads
from tests.bench.options import Options, read_options
from tests.bench.processes import in_new_process
from tests.bench.table import render


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; the exit status is 2 when a pair cannot be loaded."""
    options = read_options(arguments)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    machine = describe_machine()
    try:
        sources = [find_pair(name, options.seed) for name in options.pairs]
        pairs = tuple(in_new_process(measure_pair, source, options) for source in sources)
    except (FileNotFoundError, ConfigRefused) as refused:
        sys.stderr.write(f"bench: {refused}\n")
        return 2
    report = Report(
        date=date,
        machine=machine,
        versions=describe_versions(),
        settings=_settings(options),
        pairs=pairs,
    )
    sys.stdout.write(render(report) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(report), indent=2) + "\n", "utf-8")
    return 0


def _settings(options: Options) -> Settings:
    return Settings(
        k=options.k,
        temperature=options.temperature,
        verifier=options.verifier.value,
        rounds=options.rounds,
        tokens=options.tokens,
        prompt_tokens=options.prompt_tokens,
        repeats=options.repeats,
        threads=use_threads(options.threads),
        seed=options.seed,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
