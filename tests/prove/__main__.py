"""The command: runs the proofs and prints one table."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version

from tests.bench.machine import describe_machine, describe_versions
from tests.prove.catalogue import find_proofs
from tests.prove.options import Options, read_options
from tests.prove.pool import THREADS, run_proofs
from tests.prove.proof import Proof
from tests.prove.report import Report, merged, read_report, write_report
from tests.prove.sources import product_digest
from tests.prove.table import aligned, markdown, render


def main(arguments: Sequence[str], proofs: Sequence[Proof] | None = None) -> int:
    """Run the proofs that the flags choose: 0 when all hold, 1 when one fails, 2 when a file
    cannot be taken. `proofs` None means all there are."""
    offered = find_proofs() if proofs is None else proofs
    options = read_options(arguments, [proof.name for proof in offered])
    try:
        return _obey(options, offered)
    except (OSError, ValueError) as refused:
        sys.stderr.write(f"prove: {refused}\n")
        return 2


def _obey(options: Options, offered: Sequence[Proof]) -> int:
    if options.listing:
        rows = [(proof.name, proof.section, proof.oracle) for proof in offered]
        sys.stdout.write(aligned([("name", "section", "oracle"), *rows]) + "\n")
        return 0
    if options.markdown is not None:
        sys.stdout.write(markdown(read_report(options.markdown)) + "\n")
        return 0
    return _prove(options, offered)


def _prove(options: Options, offered: Sequence[Proof]) -> int:
    earlier = [read_report(path) for path in options.merge]
    empty = _start(options, len(offered))
    # A file that does not fit is refused here, before anything long is run.
    known = {each.name for each in merged(empty, earlier, offered).outcomes}
    chosen = [
        proof
        for proof in offered
        if (proof.name in options.only if options.only else proof.name not in known)
    ]
    outcomes = run_proofs(chosen, options.scope, options.workers)
    report = merged(replace(empty, outcomes=outcomes), earlier, offered)
    sys.stdout.write(render(report, detail=options.detail) + "\n")
    if options.json is not None:
        write_report(report, options.json)
    return 0 if report.holds else 1


def _start(options: Options, offered: int) -> Report:
    """A report without outcomes."""
    return Report(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        scope=options.scope,
        machine=describe_machine(),
        versions=describe_versions(),
        numpy=version("numpy"),
        product=product_digest(),
        threads=THREADS,
        offered=offered,
        outcomes=(),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
