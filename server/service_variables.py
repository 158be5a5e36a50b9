"""Tells variables that Kubernetes sets for a Service from settings; reads no environment itself.

A Service named fencepost, or fencepost-and-more, puts variables with our prefix into every pod of
its namespace: https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
"""

import re

__all__ = ["of_a_service"]

_LINK = r"(tcp|udp|sctp)://\S+:\d+"
_OPEN = r"PORT_\d+_(TCP|UDP|SCTP)"
# What follows the name of the Service, and what such a variable holds.
_FORMS = tuple(
    (re.compile(rf"\w+?_{name}", re.ASCII | re.IGNORECASE), re.compile(value))
    for name, value in (
        (r"SERVICE_HOST", r"[\w.:]+"),
        (r"SERVICE_PORT(_\w+)?", r"\d+"),
        (rf"(PORT|{_OPEN})", _LINK),
        (rf"{_OPEN}_PROTO", r"tcp|udp|sctp"),
        (rf"{_OPEN}_PORT", r"\d+"),
        (rf"{_OPEN}_ADDR", r"[\w.:]+"),
    )
)


def of_a_service(name: str, value: str) -> bool:
    """Whether a variable has the name and the value of one that stands for a Service."""
    return any(one.fullmatch(name) and held.fullmatch(value) for one, held in _FORMS)
