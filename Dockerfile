# Images that serve the embedded pair, or any other with --model and --draft-model:
#   docker build --build-arg TORCH_INDEX=URL -t fencepost .
#   docker build --target gpu -t fencepost:gpu .
#   docker run --rm --stop-timeout 45 -p 127.0.0.1:8000:8000 fencepost
#   docker run --rm --stop-timeout 45 -p 127.0.0.1:8000:8000 --gpus all fencepost:gpu
# TORCH_INDEX names another index for torch alone. For the CPU image it has to be PyTorch's CPU one:
# a build of torch with CUDA is refused there, it is several GB larger. EXTRAS names extras of
# pyproject.toml, and vllm, with commas and no blanks, such as otel,vllm; deploy/vllm/install.sh
# brings vLLM's build for the image. Settings are flags after `serve`, as in
# `docker run fencepost serve --k 4`, or variables, as in `docker run -e FENCEPOST_K=4 fencepost`.
# The port is a variable only, FENCEPOST_PORT: the health check reads that, and no flag; to publish
# another one, -p is enough. A drain takes up to 30 s, and Docker kills after 10 s of its own accord:
# hence --stop-timeout, or `docker stop -t 45`.

# ---- what both builds share: a new environment, and the names of what goes into it -------------
FROM python:3.11-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
RUN python -m venv /opt/fencepost
ENV PATH=/opt/fencepost/bin:$PATH
WORKDIR /src
COPY constraints.txt pyproject.toml ./
# Apart from the source, so that a change there leaves the layers with the packages as they are.
RUN python -c 'import pathlib, tomllib; \
project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
extras = project["optional-dependencies"]; \
lists = {"extra-" + name: extras[name] for name in extras}; \
lists["requirements"] = project["dependencies"]; \
[pathlib.Path(name + ".txt").write_text("\n".join(lists[name])) for name in lists]'
ARG TORCH_INDEX=""

FROM build AS build-gpu
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -c constraints.txt torch \
    && python -c 'from importlib.metadata import requires; import sys; \
sys.exit(None if any("nvidia" in r for r in requires("torch")) else "torch has no CUDA")'
RUN --mount=type=cache,target=/root/.cache/pip pip install -c constraints.txt -r requirements.txt
COPY deploy/vllm deploy/vllm
ARG EXTRAS=""
RUN --mount=type=cache,target=/root/.cache/pip \
    case ",$EXTRAS," in *,vllm,*) deploy/vllm/install.sh cuda python ;; esac
RUN --mount=type=cache,target=/root/.cache/pip \
    IFS=,; set --; for each in $EXTRAS; do \
      [ "$each" = vllm ] || set -- "$@" -r "extra-$each.txt"; done; \
    if [ $# -gt 0 ]; then pip install -c constraints.txt "$@"; fi

FROM build AS build-cpu
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -c constraints.txt torch \
    && python -c 'from importlib.metadata import requires; import sys; \
sys.exit("torch has CUDA: pass TORCH_INDEX" if any("nvidia" in r for r in requires("torch")) else None)'
RUN --mount=type=cache,target=/root/.cache/pip pip install -c constraints.txt -r requirements.txt
COPY deploy/vllm deploy/vllm
ARG EXTRAS=""
RUN --mount=type=cache,target=/root/.cache/pip \
    case ",$EXTRAS," in *,vllm,*) deploy/vllm/install.sh cpu python ;; esac
RUN --mount=type=cache,target=/root/.cache/pip \
    IFS=,; set --; for each in $EXTRAS; do \
      [ "$each" = vllm ] || set -- "$@" -r "extra-$each.txt"; done; \
    if [ $# -gt 0 ]; then pip install -c constraints.txt "$@"; fi

# Our own code, in a folder that is laid over the packages: a small layer that changes often.
FROM build AS build-code
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip pip install --no-deps --prefix /opt/code .

# ---- what both images share ---------------------------------------------------------------------
FROM python:3.11-slim-bookworm AS runtime
# The folder is there, and its user's, so that a volume mounted on it is too.
RUN useradd --system --uid 10001 --create-home fencepost \
    && install --directory --owner 10001 --group fencepost /home/fencepost/.cache
ENV PATH=/opt/fencepost/bin:$PATH PYTHONUNBUFFERED=1 \
    FENCEPOST_HOST=0.0.0.0 FENCEPOST_PORT=8000
USER 10001
WORKDIR /home/fencepost
EXPOSE 8000
STOPSIGNAL SIGTERM
# Whether it lives, not whether it is ready: whoever loads a large model is not to be restarted.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:' + os.environ['FENCEPOST_PORT'] + '/health', timeout=2)"]
ENTRYPOINT ["fencepost"]
CMD ["serve"]
ARG REVISION=""
LABEL org.opencontainers.image.title="fencepost" \
      org.opencontainers.image.description="Serves language models with exact speculative decoding" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0"

FROM runtime AS gpu
USER 0
ARG EXTRAS=""
# vLLM's Triton kernels are compiled while it runs.
# hadolint ignore=DL3008
RUN case ",$EXTRAS," in *,vllm,*) apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* ;; esac
USER 10001
# Triton keeps what it compiled: by itself in the home, which need not be writable.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    TRITON_CACHE_DIR=/home/fencepost/.cache/triton
COPY --from=build-gpu /opt/fencepost /opt/fencepost
COPY --from=build-code /opt/code /opt/fencepost

# The default: the last stage.
FROM runtime AS cpu
USER 0
ARG EXTRAS=""
# vLLM's kernels for a CPU ask it where memory is.
# hadolint ignore=DL3008
RUN case ",$EXTRAS," in *,vllm,*) apt-get update \
    && apt-get install --yes --no-install-recommends libnuma1 \
    && rm -rf /var/lib/apt/lists/* ;; esac
USER 10001
# Idle OpenMP threads that spin would take the cores from the event loop.
ENV OMP_WAIT_POLICY=passive
COPY --from=build-cpu /opt/fencepost /opt/fencepost
COPY --from=build-code /opt/code /opt/fencepost
# Kernels that cannot be loaded end the build here, not the start of a server.
RUN case ",$EXTRAS," in *,vllm,*) python -c 'import torch; \
from scheduler.runtime.vllm_loading import check_device; check_device(torch.device("cpu"))' ;; esac
