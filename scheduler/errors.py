"""What the engine refuses, one class a reason. Each message names the field and the limit.

EngineError
 +-- RequestRefused        the request can never be served as asked      (HTTP 400)
 |    +-- ContextOverflow  prompt (plus one token) longer than the context
 +-- EngineBusy            try again later                               (HTTP 503)
 +-- ConfigRefused         the server cannot start with these settings
 |    +-- ModelRefused     a model or a pair that would not be served right
 +-- IllegalTransition     a bug: a status moved outside the table
 +-- CommitRejected        a bug or an injected fault: a postcondition did not hold
"""


class EngineError(Exception):
    """Base of all that the engine raises on purpose."""


class RequestRefused(EngineError):
    """The request cannot be served as asked; `field` is the request field to blame."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class ContextOverflow(RequestRefused):
    """The prompt leaves no room for one token within the context length."""


class EngineBusy(EngineError):
    """The waiting queue is full, or the engine is draining or not yet started."""


class ConfigRefused(EngineError):
    """Settings that cannot work together; the message names each with its value."""


class ModelRefused(ConfigRefused):
    """A model, or a target/draft pair, that this runtime would not serve exactly."""


class IllegalTransition(EngineError):
    """A status was asked to move along an arrow that the table does not have."""


class CommitRejected(EngineError):
    """A commit record failed a postcondition; the authoritative state is untouched."""
