"""FID with early stopping: of all checkpoints that a run kept, the one with the lowest FID on a few samples.

The papers choose by 1,000 samples and report the FID of many samples at that step: `eblvm eval DIR --step S --fid N`.
"""

from dataclasses import replace
from typing import Any

from eblvm.engine.evaluation import plots
from eblvm.engine.evaluation.metrics.image_distances import image_distances
from eblvm.engine.evaluation.sample_sections import fid_inputs
from eblvm.engine.evaluation.section import EvalOptions
from eblvm.engine.evaluation.sections import source_of, weights_of
from eblvm.engine.plotting import save
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.saved import SavedRun

SAMPLES = 1000


def early_stopping(run: SavedRun, model: str | None, options: EvalOptions) -> dict[str, Any]:
    """{steps, fid by step, best step}, and a curve; of the moving average where there is one."""
    model = model or ("ema" if run.payload["state"]["ema"] else "last")
    options = replace(options, fid=options.fid or SAMPLES)
    folder, fids = run.folder / "checkpoints", {}
    for step in sorted(checkpoint.steps(folder)):
        then = replace(run, payload=checkpoint.read(checkpoint.path_of(folder, step)))
        source = source_of(then, model, weights_of(then, model), options)
        fids[step] = image_distances(*fid_inputs(then, source, options), options.seed)[f"fid_{options.fid}"]
    name = f"FID on {options.fid} samples"
    save(plots.curves({name: (list(fids), list(fids.values()))}), run.folder / "early_stopping.png")
    return {
        "model": model,
        "samples": options.fid,
        "steps": list(fids),
        "fid": list(fids.values()),
        "best_step": min(fids, key=lambda step: fids[step]),
    }
