#!/usr/bin/env bash
# Installs vLLM's CPU build beside Fencepost, for `fencepost serve --runtime vllm`:
#   deploy/vllm/install.sh [PYTHON]     default: the one of .venv
# vLLM names builds of torchvision and torchaudio that no CPU build of its torch goes with, and
# versions of packages that Fencepost pins otherwise. So nothing is resolved here: requirements.txt
# is everything that is missing, pinned, and pip takes it as it stands. The kernels need libnuma too,
# which Debian's libnuma1 has: without it the last step says so.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${1:-$here/../../.venv/bin/python}

"$python" -c 'from importlib.metadata import version; import sys
found = version("torch").partition("+")[0]
sys.exit(None if found == "2.13.0" else f"vLLM 0.32 needs torch 2.13.0, not {found}")'
"$python" -m pip install --no-input --disable-pip-version-check --no-deps \
  -r "$here/requirements.txt"
"$python" -c 'import torch
from scheduler.runtime.vllm_loading import check_device
check_device(torch.device("cpu"))'
