"""SVHN: house numbers in the street, cropped to 32x32."""

from dataclasses import dataclass

from eblvm.engine.data.sets.base import ImageData


@dataclass(frozen=True)
class Svhn(ImageData):
    kind = "svhn"
