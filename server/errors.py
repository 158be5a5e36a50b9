"""The one shape of every error that a client sees; knows no request and no engine call.

{"error": {"message", "type", "param", "code"}}: always these four keys.
"""

from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_core import ErrorDetails, to_json
from starlette.responses import Response

from scheduler.errors import ContextOverflow, EngineBusy, EngineError, RequestRefused

__all__ = [
    "INTERNAL",
    "ApiError",
    "Problem",
    "capped",
    "envelope",
    "error_response",
    "from_engine",
    "from_validation",
    "overflow",
    "refusal",
    "unavailable",
]

ECHO_LIMIT = 200
RETRY_AFTER_SECONDS = 1
# Parts of a validation path that name a branch of a union and no place in the body.
_BRANCHES = frozenset({"str", "int", "float", "bool", "list", "dict", "none"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An answer other than success. `param` names the request field to blame, as a path."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None


class ApiError(Exception):
    """Ends a call with `problem`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


INTERNAL = Problem(
    status=500, message="The server had an error while processing the request.", kind="server_error"
)


def refusal(param: str | None, message: str, *, code: str | None = None) -> ApiError:
    """A 400 that blames `param`."""
    return ApiError(Problem(status=400, message=message, param=param, code=code))


def overflow(limit: int, asked: str) -> ApiError:
    """The 400 for a prompt that does not fit; clients look for its code or its first words."""
    return refusal(
        None,
        f"This model's maximum context length is {limit} tokens. {asked}",
        code="context_length_exceeded",
    )


def unavailable(message: str) -> ApiError:
    """A 503 that asks the client to come back."""
    return ApiError(
        Problem(
            status=503,
            message=message,
            kind="service_unavailable",
            code="service_unavailable",
            retry_after=RETRY_AFTER_SECONDS,
        )
    )


def from_engine(problem: EngineError, limit: int) -> ApiError:
    """The answer to what the engine refused; `limit` is its context length in tokens."""
    if isinstance(problem, ContextOverflow):
        return overflow(limit, "Your prompt leaves no room for an answer.")
    if isinstance(problem, RequestRefused):
        return refusal(problem.field, str(problem))
    if isinstance(problem, EngineBusy):
        return unavailable(str(problem) or "The server is busy.")
    return ApiError(INTERNAL)


def from_validation(problem: ValidationError) -> ApiError:
    """The 400 for a body that is no JSON or breaks the protocol: its first error.

    All errors are built to get at it: lists and mappings of the protocol stop at their first.
    """
    # The input may be the whole body, which nobody wants copied.
    first = problem.errors(include_url=False, include_input=False)[0]
    param = _path(first) or first.get("ctx", {}).get("param")
    message = first["msg"] if param is None else f"{param}: {first['msg']}"
    code = "unsupported_parameter" if first["type"] == "unsupported" else None
    return refusal(param, capped(message), code=code)


def envelope(problem: Problem) -> dict[str, dict[str, str | None]]:
    """The body of `problem`."""
    return {
        "error": {
            "message": problem.message,
            "type": problem.kind,
            "param": problem.param,
            "code": problem.code,
        }
    }


def error_response(problem: Problem) -> Response:
    """`problem` as a response."""
    headers = {} if problem.retry_after is None else {"Retry-After": str(problem.retry_after)}
    return Response(
        to_json(envelope(problem)), problem.status, headers, media_type="application/json"
    )


def capped(text: object) -> str:
    """`text` cut to what is echoed back at most."""
    whole = str(text)
    return whole if len(whole) <= ECHO_LIMIT else f"{whole[:ECHO_LIMIT]}..."


def _path(error: ErrorDetails) -> str | None:
    path = ""
    for part in error["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif (part.isidentifier() or part.isdigit()) and part not in _BRANCHES:
            path += f".{part}" if path else part
    return capped(path) or None
