"""Renders the metrics page; knows the two text formats, not what is on the page."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder
from prometheus_client.openmetrics import exposition as openmetrics

__all__ = ["render"]


def render(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """The page and its content type, in the format that the Accept header asks for."""
    _, wanted = choose_encoder(accept)
    if not wanted.startswith("application/openmetrics-text"):
        return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4
    # The default escaping of 0.26 turns the colon of a sample's name into an underscore, though
    # it is legal there. All names here are legal in every scheme, so none needs an escape.
    page = openmetrics.generate_latest(registry, escaping=openmetrics.ALLOWUTF8)
    return page, openmetrics.CONTENT_TYPE_LATEST
