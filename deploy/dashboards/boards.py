"""All dashboards, in the order in which a person reads them."""

from deploy.dashboards import acceptance, goodput, operations

__all__ = ["BOARDS"]

BOARDS = (acceptance.BOARD, goodput.BOARD, operations.BOARD)
