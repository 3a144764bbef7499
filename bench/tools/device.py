"""The device of a bench command."""

from eblvm.engine.machine import own_device, set_repeatable
from eblvm.engine.recipes import recipe


def chosen(device: str) -> str:
    """Check `--device`; give a GPU its number and set it up as a run does by default."""
    config = recipe("checkerboard").replaced(device=device)
    config.check()
    if config.running.on_cuda:
        set_repeatable(False)
    return own_device(device)
