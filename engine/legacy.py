"""Configurations of format 1, one flat record of all options, as settings of today's tree.

Only what the record says of options that the run reads is used; the rest of the record was never read.
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
    custom = values.get("model") == "custom"
    if custom:
        values["posterior"] = "given"
    return {**values, "dataset": "custom" if custom else values["recipe"]}
