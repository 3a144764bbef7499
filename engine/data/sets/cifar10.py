"""CIFAR-10: photographs of ten classes, 32x32."""

from eblvm.engine.data.sets.base import ImageData


class Cifar10(ImageData):
    kind = "cifar10"
