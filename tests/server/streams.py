"""Reads a stream of server-sent events the plain way: the oracle for what a client sees."""

import json


def events_of(response) -> list[dict]:
    """The chunks of a whole stream, which must be well formed to the byte."""
    text = response.content.decode("utf-8")
    assert text.endswith("data: [DONE]\n\n")
    frames = text.split("\n\n")[:-2]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def text_of(events: list[dict], index: int = 0) -> str:
    """What the choice says in all chunks together."""
    parts = [c for e in events for c in e["choices"] if c["index"] == index]
    return "".join(p["text"] if "text" in p else p["delta"].get("content", "") for p in parts)
