"""`eblvm export`: a trained model as a folder that can be given away."""

from pathlib import Path

from eblvm.engine.cli.parser import Parser, print_next
from eblvm.engine.cli.sample import add_run
from eblvm.engine.recipes import RECIPES
from eblvm.engine.runs.folder import read_config

EXAMPLES = ("eblvm export runs/board --out board", "eblvm export runs/mnist --model ema --onnx-energy")


def main(argv: list[str]) -> None:
    text = "A trained model with its configuration and a model card, in a folder that needs no run."
    parser = Parser("export", text, EXAMPLES)
    parser.add_argument("dir", metavar="RUN", help="run folder")
    parser.add_argument("--out", metavar="DIR", help="folder of the export (default RUN/export)")
    parser.add_argument("--safetensors", action="store_true", help="weights as model.safetensors (the default)")
    parser.add_argument("--state-dict", action="store_true", help="weights as model.pt, a state dict of torch")
    parser.add_argument("--onnx-energy", action="store_true", help="also the energy's graph, energy.onnx")
    parser.add_argument("--step", type=int, help="the checkpoint of this step, not the newest")
    add_run(parser)
    arguments = parser.parse(argv)
    read_config(Path(arguments.dir))

    from eblvm.engine.runs.saved import SavedRun
    from eblvm.engine.sharing import export

    run = SavedRun.open(Path(arguments.dir), arguments.data, arguments.device, arguments.step)
    out = Path(arguments.out or run.folder / "export")
    safe = arguments.safetensors or not arguments.state_dict
    model = arguments.model or run.default_model()
    for path in export(run, model, out, safetensors=safe, state_dict=arguments.state_dict, onnx=arguments.onnx_energy):
        print(f"  {path.name:18} {path.stat().st_size / 1024:9.1f} KiB")
    print(f'next: python -c "import eblvm; print(eblvm.load({str(out)!r}).sample(4).shape)"')
    if run.config.recipe in RECIPES:  # a model of one's own continues in Python
        data = [] if run.config.get("data") is None else ["--data", run.config["data"]]
        print_next(("train", "--init", out, *data, "--out", f"{out}-next"))
