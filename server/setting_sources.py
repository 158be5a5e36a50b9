"""Where settings come from beside flags: variables and a TOML file; knows no setting but `port`."""

import tomllib
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource

from server.service_variables import of_a_service

__all__ = ["FileSource", "SettingsError", "Variables"]


class SettingsError(Exception):
    """The server cannot start with these settings; the message names each key, and its
    value where the key is known and holds no secret."""


class Variables(EnvSettingsSource):
    """The environment without the `FENCEPOST_PORT` of a Service named fencepost."""

    def __call__(self) -> dict[str, Any]:
        found = super().__call__()
        port = found.get("port")
        if isinstance(port, str) and of_a_service(f"{self.env_prefix}PORT", port):
            del found["port"]
        return found


class FileSource(PydanticBaseSettingsSource):
    """Values of a TOML file, as one more source."""

    def __init__(self, settings_cls: type[BaseSettings], path: Path) -> None:
        super().__init__(settings_cls)
        self._values = _read_toml(path)

    def get_field_value(self, field: object, field_name: str) -> tuple[object, str, bool]:  # noqa: ARG002
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, object]:
        return self._values


def _read_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise SettingsError(f"config={path}: {problem}") from None
