"""SVHN: house numbers in the street, cropped to 32x32."""

from eblvm.engine.data.sets.base import ImageData


class Svhn(ImageData):
    kind = "svhn"
