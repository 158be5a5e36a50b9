"""All settings of the server, from flags, the environment and a TOML file; knows no engine.

This is the only module that reads the environment. Flags win over `FENCEPOST_*` variables, which
win over the file that `config` names. An unknown key or a malformed value stops the start; what
Kubernetes sets for a Service named like us is no setting.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    ByteSize,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from server.cores import usable_cores
from server.service_variables import of_a_service
from server.setting_sources import FileSource, SettingsError, Variables
from server.setting_values import Count, Folder, Names, Secret, Secrets, Text

__all__ = ["DEFAULT_K", "Settings", "SettingsError", "ignored_variables", "load_settings"]

ENV_PREFIX = "FENCEPOST_"
DEFAULT_K = 4
DEFAULT_K_MAX = 8
# Metrics have a series for every pair of draft length and accepted count.
LONGEST_DRAFT = 32
EMBEDDED = "fencepost-pair"
_SHOWN = 200


class Settings(BaseSettings):
    """One field a flag, a `FENCEPOST_` variable and a key of the file; descriptions are the help.

    Lists are comma-separated in flags and variables. `None` leaves a choice to the server.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", frozen=True, allow_inf_nan=False
    )

    config: Path | None = Field(None, description="TOML file with any of these settings")
    host: Text = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    model: Text | None = Field(
        None, description="target model, a folder or a repository name (default: the embedded pair)"
    )
    draft_model: Text | None = Field(
        None, description="draft model (default: the embedded pair's, if its target is served)"
    )
    revision: Text | None = Field(None, description="revision of the target model")
    draft_revision: Text | None = Field(None, description="revision of the draft model")
    hf_token: Secret | None = Field(
        None,
        description="token for gated model repositories (others can read flags: use the variable)",
    )
    offline: bool = Field(False, description="never download, use what is on disk")
    served_model_name: Names = Field(
        (), description="names that clients may use; the first is the one answered with"
    )
    runtime: Literal["auto", "torch", "vllm"] = Field(
        "auto", description="what runs the models; auto takes vllm on a GPU where it is installed"
    )
    tensor_parallel: Count = Field(
        1, description="processes that the target is split over (runtime=vllm)"
    )
    draft_tensor_parallel: Count = Field(
        1, description="the same for the draft: 1 (whole in each of them) or as many"
    )
    distributed_executor_backend: Literal["mp", "ray"] = Field(
        "mp",
        description="what starts those processes: vLLM here, or Ray on a GPU (needs the extra ray)",
    )
    quantization: Text | None = Field(
        None, description="vLLM's name of how the target's weights are held (runtime=vllm)"
    )
    draft_quantization: Text | None = Field(
        None, description="the same for the draft (runtime=vllm)"
    )
    kv_cache_dtype: Text | None = Field(
        None, description="vLLM's name of the type of the target's K/V rows (runtime=vllm)"
    )
    draft_kv_cache_dtype: Text | None = Field(
        None, description="the same for the draft (runtime=vllm)"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where the models run")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="type of the weights")
    pack_weights: bool = Field(
        True, description="read 16-bit weights packed on a CPU where that changes no product"
    )
    batch_invariant: bool = Field(
        False,
        description="give each row the same bits whatever shares its batch: slower, on a CPU only",
    )
    enforce_eager: bool = Field(
        False, description="on a GPU launch every model call from the host, record no CUDA graphs"
    )
    threads: Count | None = Field(
        None,
        description="threads of one tensor operation on the CPU (default: the cores that this "
        "process may use but one, which stays for the event loop)",
    )
    max_model_len: Count | None = Field(None, description="tokens a request may hold, prompt too")
    draft_max_len: Count | None = Field(None, description="tokens the draft model may hold of it")
    max_batched_tokens: Count = Field(512, description="target rows of one round")
    max_requests: Count = Field(64, description="requests that run at once")
    max_waiting: Count = Field(1024, description="requests that may wait; more are answered 503")
    k: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto",
        description="draft length of requests that leave it open; auto chooses it for each request "
        "and round by what drafts gain and cost, a number fixes it",
    )
    k_max: Annotated[int, Field(ge=0)] | None = Field(
        None, description="longest draft that a request may ask for (default: 8, or k if longer)"
    )
    profile_seconds: float = Field(
        20.0,
        ge=0,
        le=600,
        description="time that a first start may take to measure what rounds cost, which k=auto "
        "needs; 0 measures nothing, and takes a number for k",
    )
    cost_cache: Folder = Field(
        Path("~/.cache/fencepost"),
        description="folder that keeps what was measured for the next start; none keeps nothing",
    )
    slo_ttft_ms: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="most milliseconds that the first token should take, for requests without an "
        "x-slo-ttft-ms header; counted, nothing is chosen by it (default: no such wish)",
    )
    slo_tpot_ms: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="most milliseconds that a token after the first should take, for requests "
        "without an x-slo-tpot-ms header (default: no such wish)",
    )
    layout: Literal["replay_frontier", "retained_frontier"] = Field(
        "replay_frontier",
        description="whether a round replays the frontier's row or an append of its own retains it",
    )
    verifier: Literal["token", "block", "shared-noise"] = Field(
        "token", description="acceptance rule of requests that name none"
    )
    proposer: Literal["auto", "draft_model", "ngram", "none"] = Field(
        "auto", description="drafter of requests that name none; auto: the draft model, else ngram"
    )
    kv_memory: ByteSize | None = Field(
        None, description="bytes for both K/V pools, such as 2GiB (default: enough for the load)"
    )
    block_size: Count | None = Field(
        None,
        description="token rows in one K/V block (default: 16; with runtime=vllm on a CPU 32, and "
        "only multiples of it)",
    )
    api_key: Secrets = Field(
        (), description="keys accepted on /v1 and /debug; none leaves them open (variable or file)"
    )
    body_limit: ByteSize = Field(ByteSize(8 << 20), ge=1, description="largest request body")
    domains: Names = Field((), description="values of metadata.domain kept as telemetry labels")
    acceptance_log: Path | None = Field(
        None, description="file that gets a record of every draft position that was reached"
    )
    acceptance_log_bytes: ByteSize = Field(
        ByteSize(64 << 20), ge=1 << 16, description="size at which that file makes room for another"
    )
    acceptance_log_files: Count = Field(4, description="such files that are kept, the open one too")
    page: bool = Field(True, description="show a page for people at /")
    debug_rounds: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="rounds kept for GET /debug/rounds (default: there is no such route)"
    )
    otel_endpoint: Text | None = Field(
        None,
        description="address that gets a trace of every request by OTLP over HTTP, such as "
        "http://127.0.0.1:4318/v1/traces (needs the extra otel; default: no traces)",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe messages that are logged"
    )
    drain_seconds: float = Field(
        30.0, ge=0, description="time that running requests get to end after SIGTERM"
    )

    heartbeat_seconds: float = Field(
        120.0, gt=0, description="time that one round may take before /health says 503"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - ours leaves out more
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the library's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment, then the file that either of them names."""
        variables = Variables(settings_cls)
        path = init_settings().get("config") or variables().get("config")
        sources = (init_settings, variables)
        return sources if path is None else (*sources, FileSource(settings_cls, Path(path)))

    @field_validator("served_model_name", "domains")
    @classmethod
    def _distinct(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) != len(names):
            raise ValueError("the same name twice")
        return names

    @field_validator("otel_endpoint")
    @classmethod
    def _a_web_address(cls, url: str | None) -> str | None:
        if url is not None and not urlsplit(url).hostname:
            raise ValueError("no URL with a host")
        if url is not None and urlsplit(url).scheme not in {"http", "https"}:
            raise ValueError("neither http nor https")
        return url

    @field_validator("acceptance_log")
    @classmethod
    def _place_for_a_log(cls, path: Path | None) -> Path | None:
        if path is not None and path.exists() and not path.is_file():
            raise ValueError("not a regular file")
        if path is not None and not path.parent.is_dir():
            raise ValueError("its folder does not exist")
        return path

    @model_validator(mode="after")
    def _draft_lengths_fit(self) -> Self:
        if self.k_max is not None and self.draft_length > self.k_max:
            raise ValueError(f"k={self.k} is longer than k_max={self.k_max}")
        most = min(LONGEST_DRAFT, self.max_batched_tokens - 1)
        if self.longest_draft > most:
            raise ValueError(
                f"k={self.k}, k_max={self.k_max}: drafts of up to {self.longest_draft} tokens, but "
                f"with max_batched_tokens={self.max_batched_tokens} at most {most} are possible"
            )
        return self

    @model_validator(mode="after")
    def _auto_needs_a_profile(self) -> Self:
        if self.k == "auto" and not self.profile_seconds:
            raise ValueError("profile_seconds=0: k=auto needs to know what rounds cost; fix k")
        return self

    @model_validator(mode="after")
    def _no_size_without_a_log(self) -> Self:
        if self.acceptance_log is None:
            for name in ("acceptance_log_bytes", "acceptance_log_files"):
                if name in self.model_fields_set:
                    raise ValueError(f"{name}={getattr(self, name)}: there is no acceptance_log")
        return self

    @property
    def root(self) -> str:
        """Where the target model comes from, as clients may know it."""
        return self.model or EMBEDDED

    @property
    def names(self) -> tuple[str, ...]:
        """The names that clients may use for the model."""
        return self.served_model_name or (self.root,)

    @property
    def tensor_threads(self) -> int:
        """Threads of one tensor operation; unless told, one core is left to the event loop."""
        return self.threads or max(1, usable_cores() - 1)

    @property
    def draft_length(self) -> int:
        """The draft length K of requests that leave it open; with auto what they are planned for
        before anything is chosen."""
        if self.k != "auto":
            return self.k
        return DEFAULT_K if self.k_max is None else min(DEFAULT_K, self.k_max)

    @property
    def longest_draft(self) -> int:
        """The largest K that a request may ask for."""
        return max(DEFAULT_K_MAX, self.draft_length) if self.k_max is None else self.k_max


def load_settings(
    flags: Mapping[str, object], environment: Mapping[str, str] | None = None
) -> Settings:
    """Settings from `flags` (by field name) and all other sources. Raises SettingsError.

    `environment` is only looked at for names that no setting has; None takes the process's own.
    """
    present = os.environ if environment is None else environment
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields}
    foreign = ignored_variables(present)
    strange = sorted(n for n in _ours(present) if n.upper() not in known and n not in foreign)
    if strange:
        raise SettingsError(f"{strange[0]}: unknown setting")
    try:
        return Settings(**flags)  # type: ignore[arg-type]
    except ValidationError as problem:
        raise SettingsError("; ".join(_sentences(problem))) from None


def ignored_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """Names in the environment (None: the process's own) that Kubernetes gave to a Service."""
    present = os.environ if environment is None else environment
    return sorted(name for name in _ours(present) if of_a_service(name, present[name]))


def _ours(environment: Mapping[str, str]) -> list[str]:
    return [name for name in environment if name.upper().startswith(ENV_PREFIX)]


def _sentences(problem: ValidationError) -> list[str]:
    secret = {"api_key", "hf_token"}
    found = []
    for error in problem.errors(include_url=False, include_context=False):
        reason = error["msg"].removeprefix("Value error, ")
        if not error["loc"]:
            found.append(reason)
            continue
        key = str(error["loc"][0])
        if error["type"] == "extra_forbidden":  # it may be a key by a misspelt name
            found.append(f"{key}: unknown setting")
            continue
        value = "(hidden)" if key in secret else _shown(error["input"])
        found.append(f"{key}={value}: {reason}")
    return found


def _shown(value: object) -> str:
    return str(value)[:_SHOWN]
