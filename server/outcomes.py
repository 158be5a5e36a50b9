"""How each HTTP call ended, for whoever counts; nothing is read back."""

from dataclasses import dataclass

from starlette.types import Scope

__all__ = ["CLIENT_CLOSED", "CallOutcome", "CallRecord", "OutcomeSink", "record_of"]

CLIENT_CLOSED = 499
_KEY = "fencepost.call"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """`route` is the path's template, so that its values are bounded; `seconds` the whole call.

    `status` is 499 when the client left before the answer was complete.
    """

    method: str
    route: str
    status: int
    seconds: float


class OutcomeSink:
    """Receives every call that ended. The default forgets."""

    def call(self, outcome: CallOutcome) -> None:
        """Called on the event loop; must not block."""


@dataclass(slots=True)
class CallRecord:
    """What is known of a running call; lives in its ASGI scope."""

    request_id: str
    status: int = 500
    client_left: bool = False

    def place(self, scope: Scope) -> None:
        """Make it findable by `record_of`."""
        scope[_KEY] = self


def record_of(scope: Scope) -> CallRecord:
    """The record of the call that `scope` belongs to."""
    record = scope[_KEY]
    if not isinstance(record, CallRecord):
        raise TypeError("not a call record")
    return record
