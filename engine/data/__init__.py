"""Data sets by recipe, and the order in which a run sees them."""

from eblvm.engine.data.dataset import Dataset
from eblvm.engine.data.datasets import WIDTHS, load
from eblvm.engine.data.input import open_input
from eblvm.engine.data.order import Order

__all__ = ["WIDTHS", "Dataset", "Order", "load", "open_input"]
