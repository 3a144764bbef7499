"""`eblvm fid`: distances between two sets of images, by the features of Inception or of DINOv2."""

from pathlib import Path

from eblvm.engine.cli.parser import Parser, print_next, write_json
from eblvm.engine.errors import UserError

EXAMPLES = ("eblvm fid samples/ photos/", "eblvm fid runs/mnist/samples.pt mnist.npz --features dinov2 --dinov2 FILE")
FULL_RANK = {"inception": 2048, "dinov2": 1024}  # features: with fewer images a covariance has not full rank


def main(argv: list[str]) -> None:
    text = "FID, KID, precision and recall of samples against real images. Small sets are biased: equal counts."
    parser = Parser("fid", text, EXAMPLES)
    parser.add_argument("a", metavar="A", help="samples: a folder of pictures, an .npz or a .pt file")
    parser.add_argument("b", metavar="B", help="the real images to compare them with")
    parser.add_argument("--features", choices=["inception", "dinov2"], help="of which network (default inception)")
    parser.add_argument("--inception", metavar="FILE", help="Inception weights, if not the installed ones")
    parser.add_argument("--dinov2", metavar="FILE", help="DINOv2 weights, if not $EBLVM_DINOV2 or torch.hub's")
    parser.add_json()
    arguments = parser.parse(argv)
    for path in (arguments.a, arguments.b):
        if not Path(path).exists():
            raise UserError(f"{path} does not exist; give a folder of pictures, an .npz or a .pt file")
    features = arguments.features or ("dinov2" if arguments.dinov2 else "inception")
    other = {"inception": "dinov2", "dinov2": "inception"}[features]
    if getattr(arguments, other) is not None:
        raise UserError(f"got --{other} and --features {features}; remove one of them")

    from eblvm.engine.evaluation.distances import distances
    from eblvm.engine.evaluation.image_sets import read_images

    sets = [read_images(Path(path), None) for path in (arguments.a, arguments.b)]
    counts = [len(images) for images in sets]
    if min(counts) < 4:
        raise UserError(f"got {counts[0]} and {counts[1]} images, expected at least 4 of each; draw more")
    name = {"inception": "Inception", "dinov2": "DINOv2"}[features]
    print(f"{counts[0]} images of {arguments.a} against {counts[1]} of {arguments.b}: {sum(counts)} through {name}")
    figures = distances(*sets, features=features, weights=getattr(arguments, features))
    more, titles = ("", ("FID", "KID")) if features == "inception" else ("_dinov2", ("FD-DINOv2", "KD-DINOv2"))
    short = ("fid", "kid") if features == "inception" else ("fd_dinov2", "kd_dinov2")
    print(f"{titles[0]} {figures[short[0]]:.4f}")
    print(f"{titles[1]} {figures[short[1]]:.5f} +- {figures[f'{short[1]}_deviation']:.5f}")
    print(f"precision {figures[f'precision{more}']:.3f} (of A, in the manifold of B; k = 3)")
    print(f"recall {figures[f'recall{more}']:.3f} (of B, in the manifold of A; k = 3)")
    write_json(arguments.json, figures | {"counts": counts})
    if min(counts) < (limit := FULL_RANK[features]):
        because = "the covariance has not full rank, compare such values with equal counts only"
        print(f"fewer than {limit} images: {because}")
        folder = Path(arguments.a).parent
        if Path(arguments.a).name == "samples.pt" and (folder / "config.json").is_file():
            print_next(("sample", folder, "--count", 10_000), ("fid", arguments.a, arguments.b))
    else:
        print_next(("fid", arguments.a, arguments.b, "--features", other))
