"""The OpenAPI page: request bodies are read by hand, so that their schemas are added here."""

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from server.protocol.chat import ChatBody
from server.protocol.completions import CompletionBody
from server.protocol.fields import Body
from server.protocol.tokens import DetokenizeBody, TokenizeBody

__all__ = ["describe"]

_BODIES: dict[str, type[Body]] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
_STATUSES = {
    "400": "The request is malformed, or asks for what is not supported",
    "401": "An API key is missing or wrong",
    "404": "There is no such model",
    "413": "The body is too large",
    "415": "The body is not JSON",
    "500": "The server failed",
    "503": "Loading, draining or full: try again after Retry-After seconds",
}
_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def describe(app: FastAPI) -> None:
    """Complete the page of `app`, which keeps it; its routes must all be there."""
    page = app.openapi()
    schemas = page.setdefault("components", {}).setdefault("schemas", {})
    _, definitions = models_json_schema(
        [(body, "validation") for body in _BODIES.values()],
        ref_template="#/components/schemas/{model}",
    )
    schemas |= definitions.get("$defs", {}) | {"Error": _ERROR}
    for path, operations in page["paths"].items():
        for operation in operations.values():
            _complete(operation, _BODIES.get(path))


def _complete(operation: dict[str, Any], body: type[Body] | None) -> None:
    responses = operation.setdefault("responses", {})
    responses.pop("422", None)
    for status, text in _STATUSES.items():
        responses[status] = {"description": text, "content": _json({"$ref": _named("Error")})}
    if body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": _json({"$ref": _named(body.__name__)}),
        }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _named(name: str) -> str:
    return f"#/components/schemas/{name}"
