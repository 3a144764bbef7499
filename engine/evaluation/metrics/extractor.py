"""A network whose features images are compared by."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eblvm.engine.machine import full_products

BATCH = 20  # images at once: 21 MB of Inception's input


@dataclass(frozen=True)
class Extractor:
    """`net`: uint8 images [n, 3, S, S] -> [n, width], followed by a classifier's logits where there are any."""

    kind: str  # inception or dinov2
    name: str
    digest: str  # of its weights
    width: int
    net: Callable[[Tensor], Tensor]
    has_logits: bool = False

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """uint8 images [n, C, S, S] -> features and logits, float32; a grey image has three equal channels. Without
        tf32, whatever the model's own precision: published distances are of full fp32."""
        with full_products():
            return torch.cat([self.net(chunk.expand(-1, 3, -1, -1)).float().cpu() for chunk in images.split(BATCH)])
