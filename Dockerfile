# A CPU image that serves the embedded pair:
#   docker build --build-arg TORCH_INDEX=URL -t fencepost .
#   docker run --rm -p 8000:8000 fencepost
# URL is PyTorch's CPU wheel index; a build of torch with CUDA is refused, it is several GB larger.

FROM python:3.11-slim-bookworm AS build
ARG TORCH_INDEX=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
RUN python -m venv /opt/fencepost
ENV PATH=/opt/fencepost/bin:$PATH
WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -c constraints.txt torch \
    && python -c 'from importlib.metadata import requires; import sys; \
sys.exit("torch has CUDA: pass TORCH_INDEX" if any("nvidia" in r for r in requires("torch")) else 0)'
COPY . .
RUN pip install -c constraints.txt .

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --create-home fencepost
COPY --from=build /opt/fencepost /opt/fencepost
# Idle OpenMP threads that spin would take the cores from the event loop.
ENV PATH=/opt/fencepost/bin:$PATH OMP_WAIT_POLICY=passive PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/fencepost
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
ENTRYPOINT ["fencepost"]
CMD ["serve", "--host", "0.0.0.0"]
