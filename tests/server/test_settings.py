"""Settings from flags, environment and file; whatever is wrong is named and stops the start."""

import os
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
import torch
from pydantic import SecretStr

from scheduler.errors import ModelRefused
from server import assembly
from server.settings import Settings, SettingsError, ignored_variables, load_settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in Settings.model_fields:
        monkeypatch.delenv(f"FENCEPOST_{name.upper()}", raising=False)


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "fencepost.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_defaults():
    settings = load_settings({})
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert (settings.draft_length, settings.longest_draft) == (4, 8)
    assert (settings.root, settings.names) == ("fencepost-pair", ("fencepost-pair",))
    assert settings.api_key == ()
    assert settings.heartbeat_seconds == 120
    assert (settings.k, settings.profile_seconds, settings.slo_tpot_ms) == ("auto", 20, None)
    assert (settings.slo_ttft_ms, settings.otel_endpoint) == (None, None)
    assert settings.cost_cache == Path.home() / ".cache" / "fencepost"
    assert load_settings({"model": "org/name"}).names == ("org/name",)


def test_flags_win_over_variables_and_variables_over_the_file(monkeypatch, file):
    path = file('port = 1\nk = 1\nmax_requests = 1\ndomains = ["a"]')
    monkeypatch.setenv("FENCEPOST_PORT", "2")
    monkeypatch.setenv("FENCEPOST_K", "2")
    settings = load_settings({"config": path, "port": "3"})
    assert (settings.port, settings.k, settings.max_requests) == (3, 2, 1)
    assert settings.domains == ("a",)


def test_the_variable_names_the_file_too(monkeypatch, file):
    monkeypatch.setenv("FENCEPOST_CONFIG", file("port = 7"))
    assert load_settings({}).port == 7


@pytest.mark.parametrize(("k_max", "length"), [("0", 0), ("2", 2), ("4", 4), ("9", 4)])
def test_auto_keeps_to_the_longest_draft(k_max, length):
    settings = load_settings({"k_max": k_max})
    assert (settings.k, settings.draft_length) == ("auto", length)
    assert settings.longest_draft == int(k_max)


def test_lists_sizes_and_choices():
    settings = load_settings(
        {
            "served_model_name": "a, b,",
            "api_key": "k1,k2",
            "kv_memory": "2GiB",
            "body_limit": "10kB",
            "k": "auto",
            "offline": True,
        }
    )
    assert settings.names == ("a", "b")
    assert [key.get_secret_value() for key in settings.api_key] == ["k1", "k2"]
    assert (settings.kv_memory, settings.body_limit) == (2 << 30, 10_000)
    assert settings.draft_length == 4


@pytest.mark.parametrize(
    ("k", "k_max", "longest"), [("3", None, 8), ("12", None, 12), ("3", "3", 3), ("0", "0", 0)]
)
def test_the_longest_draft(k, k_max, longest):
    flags = {"k": k} if k_max is None else {"k": k, "k_max": k_max}
    assert load_settings(flags).longest_draft == longest


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"port": "many"}, "port=many"),
        ({"port": "65536"}, "port=65536"),
        ({"device": "tpu"}, "device=tpu"),
        ({"verifier": "typical"}, "verifier=typical"),
        ({"layout": "row_major"}, "layout=row_major"),
        ({"proposer": "suffix"}, "proposer=suffix"),
        ({"k": "long"}, "k=long"),
        ({"k": "-1"}, "k=-1"),
        ({"k": "9", "k_max": "8"}, "k=9 is longer than k_max=8"),
        ({"k": "4096", "max_batched_tokens": "64"}, "k=4096, k_max=None: drafts of up to 4096"),
        ({"k": "33"}, "at most 32 are possible"),
        ({"k_max": "8", "max_batched_tokens": "8"}, "max_batched_tokens=8 at most 7"),
        ({"max_requests": "0"}, "max_requests=0"),
        ({"profile_seconds": "-1"}, "profile_seconds=-1"),
        ({"profile_seconds": "601"}, "profile_seconds=601"),
        ({"profile_seconds": "0"}, "profile_seconds=0: k=auto needs to know what rounds cost"),
        ({"cost_cache": ""}, "cost_cache=: an empty name"),
        ({"slo_tpot_ms": "0"}, "slo_tpot_ms=0"),
        ({"slo_tpot_ms": "inf"}, "slo_tpot_ms=inf"),
        ({"slo_ttft_ms": "0"}, "slo_ttft_ms=0"),
        ({"slo_ttft_ms": "nan"}, "slo_ttft_ms=nan"),
        ({"otel_endpoint": "localhost:4318"}, "otel_endpoint=localhost:4318: no URL with a host"),
        ({"otel_endpoint": "grpc://host:1"}, "otel_endpoint=grpc://host:1: neither http nor https"),
        ({"otel_endpoint": "http://[bad/"}, "otel_endpoint=http://[bad/"),
        ({"kv_memory": "lots"}, "kv_memory=lots"),
        ({"drain_seconds": "inf"}, "drain_seconds=inf"),
        ({"drain_seconds": "-1"}, "drain_seconds=-1"),
        ({"heartbeat_seconds": "0"}, "heartbeat_seconds=0"),
        ({"heartbeat_seconds": "nan"}, "heartbeat_seconds=nan"),
        ({"threads": "0"}, "threads=0"),
        ({"domains": "a,a"}, "domains="),
        ({"acceptance_log": "no/such/log"}, "acceptance_log=no/such/log: its folder"),
        ({"acceptance_log": "."}, "acceptance_log=.: not a regular file"),
        ({"acceptance_log_bytes": "1kB"}, "acceptance_log_bytes=1kB"),
        ({"acceptance_log_files": "0"}, "acceptance_log_files=0"),
        ({"acceptance_log_bytes": "1MiB"}, "acceptance_log_bytes=1048576: there is no"),
        ({"acceptance_log_files": "4"}, "acceptance_log_files=4: there is no acceptance_log"),
        ({"lora_modules": "x"}, "lora_modules: unknown setting"),
        ({"config": "no/such/file.toml"}, "config=no/such/file.toml"),
    ],
)
def test_what_is_wrong_is_named(flags, named):
    with pytest.raises(SettingsError) as refused:
        load_settings(flags)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("cores", "asked", "threads"),
    [
        ({0}, None, 1),
        ({3, 5}, None, 1),
        ({1, 3, 5}, None, 2),
        (set(range(8)), None, 7),
        (set(range(8)), "8", 8),
    ],
)
def test_one_core_is_left_to_the_event_loop(monkeypatch, cores, asked, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    flags = {} if asked is None else {"threads": asked}
    assert load_settings(flags).tensor_threads == threads


def test_sizes_of_the_acceptance_log_need_one(monkeypatch, file, tmp_path):
    sizes = {"acceptance_log_bytes": "1MiB", "acceptance_log_files": "2"}
    settings = load_settings({"acceptance_log": str(tmp_path / "log"), **sizes})
    assert (settings.acceptance_log_bytes, settings.acceptance_log_files) == (1 << 20, 2)
    with pytest.raises(SettingsError, match="acceptance_log_files=3: there is no"):
        load_settings({"config": file("acceptance_log_files = 3")})
    monkeypatch.setenv("FENCEPOST_ACCEPTANCE_LOG_BYTES", "1MiB")
    with pytest.raises(SettingsError, match="acceptance_log_bytes=1048576: there is no"):
        load_settings({})


@pytest.mark.parametrize(
    ("given", "folder"),
    [("none", None), ("~/costs", Path.home() / "costs"), ("a/b", Path("a/b"))],
)
def test_the_folder_of_costs(given, folder, file):
    assert load_settings({"cost_cache": given}).cost_cache == folder
    assert load_settings({"config": file(f'cost_cache = "{given}"')}).cost_cache == folder


def test_without_a_home_nothing_is_kept(monkeypatch):
    def homeless(_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert load_settings({}).cost_cache is None


def test_a_fixed_k_needs_no_profile():
    assert load_settings({"k": "0", "profile_seconds": "0"}).profile_seconds == 0


def test_threads_are_set_before_anything_is_loaded(monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "set_num_threads", calls.append)

    def load_nothing(_settings):
        calls.append("load")
        raise ModelRefused("enough")

    monkeypatch.setattr(assembly, "build_runner", load_nothing)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    for flags, threads in (({}, 5), ({"threads": "3"}, 3)):
        calls.clear()
        with pytest.raises(ModelRefused):
            assembly.load(load_settings(flags))
        assert calls == [threads, "load"]


def test_unknown_and_malformed_keys_of_the_file(file):
    for text, named in (
        ("prot = 1", "prot: unknown setting"),
        ("port = 'x'", "port=x"),
        ("port = ", "config="),
        ("[server]\nport = 1", "server: unknown setting"),
    ):
        with pytest.raises(SettingsError) as refused:
            load_settings({"config": file(text)})
        assert named in str(refused.value)


def test_unknown_and_malformed_variables(monkeypatch):
    monkeypatch.setenv("FENCEPOST_PORT", "tcp:8000")
    with pytest.raises(SettingsError, match="port=tcp:8000"):
        load_settings({})
    with pytest.raises(SettingsError, match="FENCEPOST_PROT: unknown setting"):
        load_settings({}, {"FENCEPOST_PROT": "1"})


def strings(annotation):
    """Whether a text is one of the forms of an annotation."""
    if annotation in (str, SecretStr):
        return True
    return get_origin(annotation) is not Literal and any(map(strings, get_args(annotation)))


TEXTS = [name for name, each in Settings.model_fields.items() if strings(each.annotation)]


@pytest.mark.parametrize("given", ["", "  "])
@pytest.mark.parametrize("name", TEXTS)
def test_no_text_is_empty(name, given, monkeypatch, file):
    """An empty host is all of them, an empty model the embedded one, no keys are no lock."""
    with pytest.raises(SettingsError, match=f"{name}="):
        load_settings({name: given})
    with pytest.raises(SettingsError, match=f"{name}="):
        load_settings({"config": file(f'{name} = "{given}"')})
    monkeypatch.setenv(f"FENCEPOST_{name.upper()}", given)
    with pytest.raises(SettingsError, match=f"{name}="):
        load_settings({})


def test_the_texts_are_all_there():
    assert {"host", "model", "draft_model", "revision", "hf_token", "quantization"} < set(TEXTS)
    assert {"api_key", "served_model_name", "domains", "otel_endpoint"} < set(TEXTS)


@pytest.mark.parametrize("name", ["api_key", "served_model_name", "domains"])
def test_entries_of_a_list_are_stripped_and_not_empty(name, file):
    for text in ("[]", '[""]', '["a", " "]', '" , "'):
        with pytest.raises(SettingsError, match=f"{name}=.*empty"):
            load_settings({"config": file(f"{name} = {text}")})
    for text in ('[" a ", "b"]', '" a ,, b,"'):
        found = getattr(load_settings({"config": file(f"{name} = {text}")}), name)
        secret = isinstance(found[0], SecretStr)
        assert [each.get_secret_value() if secret else each for each in found] == ["a", "b"]
    with pytest.raises(SettingsError, match=f"{name}="):
        load_settings({"config": file(f"{name} = [5]")})


SERVICE = {
    "FENCEPOST_SERVICE_HOST": "10.0.0.7",
    "FENCEPOST_SERVICE_PORT": "8000",
    "FENCEPOST_SERVICE_PORT_HTTP": "8000",
    "FENCEPOST_PORT": "tcp://10.0.0.7:8000",
    "FENCEPOST_PORT_8000_TCP": "tcp://10.0.0.7:8000",
    "FENCEPOST_PORT_8000_TCP_PROTO": "tcp",
    "FENCEPOST_PORT_8000_TCP_PORT": "8000",
    "FENCEPOST_PORT_8000_TCP_ADDR": "10.0.0.7",
    "FENCEPOST_PORT_53_UDP": "udp://[fd00::7]:53",
    "FENCEPOST_PORT_53_UDP_ADDR": "fd00::7",
    "FENCEPOST_GPU_SERVICE_HOST": "10.0.0.8",
    "FENCEPOST_GPU_PORT": "tcp://10.0.0.8:80",
}


def test_what_kubernetes_sets_for_a_service_is_no_setting(monkeypatch, file):
    for name, value in SERVICE.items():
        monkeypatch.setenv(name, value)
    assert ignored_variables() == sorted(SERVICE)
    assert load_settings({}).port == 8000
    assert load_settings({"config": file("port = 7")}).port == 7
    assert load_settings({"port": "9"}).port == 9
    monkeypatch.setenv("FENCEPOST_PORT", "8001")
    assert load_settings({}).port == 8001
    assert "FENCEPOST_PORT" not in ignored_variables()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("FENCEPOST_SERVICE", "x"), ("FENCEPOST_SERVICE_HOSTS", "10.0.0.7")),
        *(("FENCEPOST_SERVICE_PORT", "many"), ("FENCEPOST_SERVICE_HOST", "my host")),
        *(("FENCEPOST_PORT_HTTP", "8000"), ("FENCEPOST_PORT_8000_TCP", "8000")),
        *(("FENCEPOST_PORT_8000_TCP_NAME", "x"), ("FENCEPOST_GPU_PORT", "8000")),
        *(("FENCEPOST_HOSTPORT", "tcp://10.0.0.7:8000"), ("FENCEPOST_PORT_8000_TCP_PROTO", "no")),
    ],
)
def test_what_only_looks_like_it_is_unknown(name, value):
    with pytest.raises(SettingsError, match=f"{name}: unknown setting"):
        load_settings({}, {name: value})


def test_secrets_are_not_shown(file):
    path = file('hf_token = 5\napi_key = [{ secret = "value" }]')
    with pytest.raises(SettingsError) as refused:
        load_settings({"config": path})
    assert "value" not in str(refused.value)
    assert "hf_token=(hidden)" in str(refused.value)
    settings = load_settings({"hf_token": "tell", "api_key": "nobody"})
    assert "tell" not in repr(settings)
    assert "nobody" not in repr(settings)


@pytest.mark.parametrize("name", ["api_keys", "apikey", "hf_tokens", "key"])
def test_what_a_misspelt_name_holds_is_not_shown(name, file):
    texts = (f'{name} = "sk-secret"', f'[{name}]\nmine = "sk-secret"', f'{name} = ["sk-secret"]')
    for flags in ({name: "sk-secret"}, *({"config": file(text)} for text in texts)):
        with pytest.raises(SettingsError, match=f"{name}: unknown setting") as refused:
            load_settings(flags)
        assert "secret" not in str(refused.value)
    variable = f"FENCEPOST_{name.upper()}"
    with pytest.raises(SettingsError, match=f"{variable}: unknown setting") as refused:
        load_settings({}, {variable: "sk-secret"})
    assert "secret" not in str(refused.value)


def test_every_setting_explains_itself():
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert field.description[0].islower() or field.description.startswith("TOML")
