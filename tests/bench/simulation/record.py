"""Turns acceptance logs of a server into the recorded outcomes that a scenario replays.

`python -m tests.bench.simulation.record LOG > tests/bench/simulation/recorded.json`

The kept ones: the embedded pair, `--k 8 --k-max 8`, 60 windows of 96 tokens of the held-out text,
192 tokens each, four at once, every other one at temperature 0. A string has one figure for each
position of a request's output: 1 where a draft was accepted, 0 where it was refused. Positions
that nobody drafted, the first and those of a bonus, count as accepted.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def outcomes(lines: Iterable[str]) -> dict[str, list[str]]:
    """Outcome strings by policy, in order of the requests."""
    tested: dict[int, dict[int, bool]] = defaultdict(dict)
    policies: dict[int, str] = {}
    ends: dict[int, int] = defaultdict(int)
    for line in lines:
        record = json.loads(line)
        if record["record"] not in {"position", "plain"}:
            continue
        request, position = record["request"], record["position"]
        policies[request] = record["policy"]
        tested[request][position] = record.get("accepted", True)
        ends[request] = max(ends[request], position)
    found: dict[str, list[str]] = defaultdict(list)
    for request, policy in sorted(policies.items()):
        found[policy].append(_string(tested[request], ends[request]))
    return dict(found)


def _string(tested: Mapping[int, bool], end: int) -> str:
    places = range(min(tested), end + 1)
    return "".join("1" if tested.get(place, True) else "0" for place in places)


def main(arguments: Sequence[str]) -> int:
    """Print the outcomes of these logs as one JSON object."""
    lines: list[str] = []
    for name in arguments:
        lines += Path(name).read_text("utf-8").splitlines()
    json.dump(outcomes(lines), sys.stdout, indent=0, sort_keys=True)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
