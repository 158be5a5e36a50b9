"""Types of settings that take more forms than one; knows no setting."""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr, StringConstraints
from pydantic_settings import NoDecode

__all__ = ["Count", "Folder", "Names", "Secret", "Secrets", "Text"]


def _split(value: object) -> object:
    """The entries of a comma-separated text or of a list, stripped. What was given is not empty."""
    if isinstance(value, str):
        value = [part for part in value.split(",") if part.strip()]
    if not isinstance(value, list):  # the default is a tuple
        return value
    entries = [_stripped(entry) for entry in value]
    if not entries or "" in entries:
        raise ValueError("an empty entry" if entries else "given, but empty")
    return entries


def _stripped(value: object) -> object:
    return value.strip() if isinstance(value, str) else value


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
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Secret = Annotated[SecretStr, BeforeValidator(_stripped), Field(min_length=1)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split)]
Count = Annotated[int, Field(ge=1)]
