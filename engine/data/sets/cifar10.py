"""CIFAR-10: photographs of ten classes, 32x32."""

from dataclasses import dataclass

from eblvm.engine.data.sets.base import ImageData


@dataclass(frozen=True)
class Cifar10(ImageData):
    kind = "cifar10"
