"""Configurations of older versions, as settings of today's tree: format 1, one flat record of all options, of which
only what the run reads is used; and format 2, with options that have another place, name or meaning today.
"""

from typing import Any

RENAMED = {
    "bidvl_energy": "energy",
    "bidvl_divergence": "divergence",
    "bidvl_opposite": "opposite",
    "bidvl_latent": "latent_term",
    "bidvl_ratio": "ratio",
    "bidvl_bias": "ratio_bias",
    "bidvl_upper": "upper",
    "bidvl_output": "output",
}

OF_STEP = ("micro_batch", "fused", "compile", "graphs", "memory_budget")  # which format 2 had in `running`


def settings(flat: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `Config.of` for a flat record."""
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in flat.items()}
    if values.get("method") == "bidvl":  # it reads its own divergence
        values.pop("divergence", None)
    else:
        values = {name: v for name, v in values.items() if name not in RENAMED}
    values = {RENAMED.get(name, name): v for name, v in values.items()}
    if values.get("unroll_memory") == "compiled":  # the compiler's trade, which any compiled step can make
        values["unroll_memory"] = "store"
    else:
        values.pop("memory_budget", None)
    if values["recipe"] == "checkerboard":  # of that name was the 4x4 board
        values["recipe"] = "checkerboard4"
    values = with_alpha(values, values.get("latent"))
    custom = values.get("model") == "custom"
    if custom:
        values["posterior"] = "given"
    return {**values, "dataset": "custom" if custom else values["recipe"]}


def tree_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return a tree of format 2 or 3 as one of today's; any other as it is."""
    if values.get("format") not in (2, 3):
        return dict(values)
    if isinstance(dataset := values.get("dataset"), dict) and dataset.get("kind") == "images":
        values = {**values, "dataset": {"split_seed": None, **dataset}}  # were divided in the order of their names
    if values["format"] == 3:
        return dict(values)
    values = {**values, "format": 3}
    if isinstance(running := values.get("running"), dict):
        values["step"] = {name: running[name] for name in OF_STEP if name in running}
        values["running"] = {name: value for name, value in running.items() if name not in OF_STEP}
    method, model = values.get("method"), values.get("model")
    if isinstance(method, dict) and isinstance(method.get("estimator"), dict):
        latent = model.get("latent") if isinstance(model, dict) else None
        values["method"] = {**method, "estimator": with_alpha(method["estimator"], latent)}
    return values


def with_alpha(values: dict[str, Any], latent: Any) -> dict[str, Any]:
    """`langevin_step` multiplied the gradient, as half of `langevin_alpha` does; none was 2e-4 per latent unit."""
    if "langevin_step" not in values:
        return values
    rest = {name: value for name, value in values.items() if name != "langevin_step"}
    step = values["langevin_step"] or (2e-4 * latent if isinstance(latent, int) else None)
    return {**rest, "langevin_alpha": 2 * step if isinstance(step, float) else step}
