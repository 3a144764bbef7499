"""CelebA: faces cropped and resized to 32, 64 or 128 pixels, from pictures or from arrays of that size."""

from eblvm.engine.data.contents import Contents
from eblvm.engine.data.sets.base import PictureData
from eblvm.engine.options import option


class CelebA(PictureData):
    stored_shape = (3, 64, 64)

    crop: int = option(140, "pixels of the centre square that is kept of a picture 178 wide", low=1, high=178)

    @property
    def array_shape(self) -> tuple[int, int, int]:
        return (3, self.pixels, self.pixels)

    def cropped(self, contents: Contents) -> Contents:
        """Pictures that are cropped as CelebA's users do."""
        from eblvm.engine.data.readers.picture_folder import CELEBA_WIDTH

        return contents._replace(crop_fraction=self.crop / CELEBA_WIDTH)


class CelebA32(CelebA):
    kind = "celeba32"
    stored_shape = (3, 32, 32)


class CelebA64(CelebA):
    kind = "celeba64"


class CelebA128(CelebA):
    kind = "celeba128"
    stored_shape = (3, 128, 128)
