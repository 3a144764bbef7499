"""Types that several layers share."""

from torch import Tensor

Params = dict[str, Tensor]  # of a module, by name
