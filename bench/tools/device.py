"""The device of a bench command."""

from eblvm.engine.device import own_device, set_repeatable
from eblvm.engine.recipes import recipe


def chosen(device: str) -> str:
    """`--device` checked and, of a GPU, with its number and set up as a run sets it up by default."""
    config = recipe("checkerboard").replaced(device=device)
    config.check()
    running = config.running
    running.check_device()
    if running.on_cuda:
        set_repeatable(False)
    return own_device(device)
