#!/usr/bin/env bash
# Checks this checkout on one large NVIDIA GPU in under eight minutes, from whatever Python has torch
# and transformers; nothing is installed or fetched. What is missing is skipped by name.
#
#   tests/gpu/check.sh                    on a machine with a CUDA device
#   tests/gpu/check.sh --tiny             the same path on a CPU, with a pair of some million weights
#   tests/gpu/check.sh --enforce-eager    model calls launched from the host, none recorded
#   PYTHON=python3.12 OUT=DIR tests/gpu/check.sh --seconds 300 --stages throughput
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ -z "${PYTHON:-}" ]; then
  PYTHON=python3
  if [ -x .venv/bin/python ]; then PYTHON=.venv/bin/python; fi
fi

missing="$("$PYTHON" - <<'END'
from importlib.util import find_spec

print(*(name for name in ("torch", "transformers", "numpy") if find_spec(name) is None))
END
)"
if [ -n "$missing" ]; then
  printf 'check: %s has no %s: nothing can run (another Python: PYTHON=...)\n' \
    "$PYTHON" "$missing" >&2
  exit 2
fi

# Idle OpenMP threads that spin would take the cores from the event loop.
export OMP_WAIT_POLICY=passive PYTHONUNBUFFERED=1
exec "$PYTHON" -m tests.gpu "$@"
