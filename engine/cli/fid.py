"""`eblvm fid`: the Frechet Inception distance between two sets of images."""

from pathlib import Path

from eblvm.engine.cli.parser import Parser, write_json
from eblvm.engine.errors import UserError

EXAMPLES = ("eblvm fid samples/ photos/", "eblvm fid runs/mnist/samples.pt mnist.npz --inception inception.pth")


def main(argv: list[str]) -> None:
    text = "FID between two sets: folders of pictures, .npz or .pt files. Small sets are biased: equal counts."
    parser = Parser("fid", text, EXAMPLES)
    parser.add_argument("a", metavar="A", help="a folder of pictures, an .npz or a .pt file")
    parser.add_argument("b", metavar="B", help="the set to compare it with")
    parser.add_argument("--inception", metavar="FILE", help="Inception weights, if not the installed ones")
    parser.add_json()
    arguments = parser.parse(argv)
    for path in (arguments.a, arguments.b):
        if not Path(path).exists():
            raise UserError(f"{path} does not exist; give a folder of pictures, an .npz or a .pt file")

    from eblvm.engine.api import fid
    from eblvm.engine.evaluation.image_sets import read_images

    sets = [read_images(Path(path), None) for path in (arguments.a, arguments.b)]
    counts = [len(images) for images in sets]
    print(f"{counts[0]} images of {arguments.a} against {counts[1]} of {arguments.b}: {sum(counts)} through Inception")
    value = fid(*sets, weights=arguments.inception)
    print(f"FID {value:.4f}")
    if min(counts) < 2048:
        print("fewer than 2048 images: the covariance has not full rank, compare such values with equal counts only")
    write_json(arguments.json, {"fid": value, "counts": counts})
