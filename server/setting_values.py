"""Types of settings that take more forms than one; knows no setting."""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

__all__ = ["Count", "Folder", "Names", "Secrets"]


def _split(value: object) -> object:
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


def _folder(value: object) -> object:
    """The path, from the home folder for `~`; None for the word none, or where no home is known."""
    if not isinstance(value, (str, Path)) or str(value) == "none":
        return None if value == "none" else value
    if not str(value):
        raise ValueError("an empty name; none keeps nothing")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        return None


Folder = Annotated[Path | None, BeforeValidator(_folder)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split)]
Count = Annotated[int, Field(ge=1)]
