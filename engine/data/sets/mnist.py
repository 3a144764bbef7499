"""MNIST: handwritten digits of 28x28, with a frame of 2 pixels."""

from eblvm.engine.data.sets.base import ImageData


class Mnist(ImageData):
    kind = "mnist"
    stored_shape = (1, 28, 28)
    padding = 2
