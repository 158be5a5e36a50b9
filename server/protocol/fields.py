"""Field types that both generation endpoints share, and how a known field is refused."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

__all__ = [
    "Body",
    "Count",
    "Int64",
    "Penalty",
    "StopStrings",
    "TokenId",
    "Unsupported",
    "disagreement",
    "only",
]

MAX_STOPS = 4
MAX_STOP_CHARS = 1024
INT64 = 1 << 63


class Body(BaseModel):
    """A request body: unknown keys are ignored, known ones must have exactly the right type.

    A list or mapping of anything that can be wrong has `fail_fast`, bounded or not: its
    length is checked last, and an error for each of a million elements takes gigabytes.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


def only(*neutral: object) -> BeforeValidator:
    """Accept null and the `neutral` values, which ask for nothing; refuse all others by name."""

    def check(value: object) -> object:
        if value is None or any(type(value) is type(one) and value == one for one in neutral):
            return value
        if not neutral:
            raise PydanticCustomError("unsupported", "not supported by this server")
        raise PydanticCustomError(
            "unsupported",
            "only {allowed} is supported by this server",
            {"allowed": " or ".join(map(repr, neutral))},
        )

    return BeforeValidator(check)


def disagreement(param: str, message: str) -> PydanticCustomError:
    """The error of a validator that looked at several fields; `param` is the one to blame."""
    return PydanticCustomError("disagreement", "{message}", {"message": message, "param": param})


def _stop_strings(value: object) -> object:
    return [value] if isinstance(value, str) else value


Unsupported = Annotated[object, only()]
Int64 = Annotated[int, Field(ge=-INT64, lt=INT64)]
Count = Annotated[int, Field(ge=1, lt=INT64)]
TokenId = Annotated[int, Field(ge=0, lt=INT64)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
StopStrings = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]],
    Field(max_length=MAX_STOPS, fail_fast=True),
    BeforeValidator(_stop_strings, json_schema_input_type=str | list[str]),
]
