"""Types that several layers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Params = dict[str, "Tensor"]
