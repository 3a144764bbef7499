"""A run's folder: made once, locked while it is trained, and continued only by the same configuration."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from eblvm.engine import nets
from eblvm.engine.config import Config
from eblvm.engine.durable import make_folder, take_lock, write_atomic
from eblvm.engine.errors import UserError, reason
from eblvm.engine.runs import parent

LOCK = ".lock"
ADVICE = "restore it, or train into another --out"
CONFIG, TWIN = "config.json", "checkpoints/config-copy.json"
CUSTOM_MODELS = "custom_models.json"
# All that a run killed before its first write leaves behind.
WRITTEN = CUSTOM_MODELS, parent.PARENT
LEFT_BY_A_KILL = {LOCK, ".config.json.tmp", *WRITTEN, *(f".{name}.tmp" for name in WRITTEN)}


def open_run(
    config: Config,
    out: Path,
    energy: nets.Net | None = None,
    posterior: nets.Net | None = None,
    *,
    extend: bool = False,
    origin: dict[str, Any] | None = None,
) -> IO[bytes]:
    """Make the run folder, or see that the one there is of the same configuration. Returns the folder's lock.

    `extend` lets the run be longer than it was; `origin` is what a fork records of its parent."""
    if (out / CONFIG).exists() or (out / TWIN).exists():
        before = read_config(out)
        differences = config.differences(before)
        if differences and not (extend and config.longer(before)):
            advice = (
                f"to train it for longer use --resume {out} --steps {config.optimisation.steps}"
                if config.longer(before)
                else "give the same options to continue it, another --out for a new run, or --init to start from it"
            )
            raise UserError(f"{out} contains a run of another configuration ({'; '.join(differences)}); {advice}")
        expect_same_models(out, config, energy, posterior)
    elif out.exists() and not (out.is_dir() and all(p.name in LEFT_BY_A_KILL for p in out.iterdir())):
        raise UserError(f"{out} exists and is not a run folder; nothing was overwritten: give another --out")
    out.mkdir(parents=True, exist_ok=True)
    try:
        held = take_lock(out / LOCK, wait=False)
    except BlockingIOError:
        raise UserError(f"{out} is being trained by another process; wait for it, or give another --out") from None
    try:
        if not (out / CONFIG).exists() and not (out / TWIN).exists():
            if (models := custom_models(config, energy, posterior)) is not None:
                write_atomic(out / CUSTOM_MODELS, (json.dumps(models) + "\n").encode())
            if origin is not None:
                parent.write(out, origin)
            write_config(config, out)
    except BaseException:
        held.close()
        raise
    return held


def code_digest(model: nets.Net | None) -> str | None:
    """A digest of the code of a user's model and of its modules, and of its parameters' shapes."""
    if model is None:
        return None
    digest = hashlib.sha256()
    for module in model.modules():
        digest.update(type(module).__qualname__.encode())
        if not type(module).__module__.startswith(("torch.", "eblvm.")):
            with suppress(OSError, TypeError):  # typed at a prompt: its name and parameters have to do
                digest.update(inspect.getsource(type(module)).encode())
    for name, p in model.named_parameters():
        digest.update(f"{name} {list(p.shape)}".encode())
    return digest.hexdigest()[:16]


def custom_models(config: Config, energy: nets.Net | None, posterior: nets.Net | None) -> dict[str, str | None] | None:
    """A run's record of models that were given in Python; None where it has none."""
    if energy is None and posterior is None:
        return None
    if name := config.get("model_name"):
        return {"name": name}
    return {"energy": code_digest(energy), "posterior": code_digest(posterior)}


def expect_same_models(folder: Path, config: Config, energy: nets.Net | None, posterior: nets.Net | None) -> None:
    """A run of the user's own models continues, and is read, with those models only."""
    path = folder / CUSTOM_MODELS
    if not path.is_file():
        return
    got = custom_models(config, energy, posterior)
    try:
        expected = json.loads(path.read_bytes())
        if not isinstance(expected, dict):
            raise ValueError(f"it is a {type(expected).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        print(f"warning: {path} is damaged ({reason(error)}); the models cannot be compared", file=sys.stderr)
        return
    if got is None:
        raise UserError(f"{folder} is a run of models given in Python; give the same `energy` and `posterior` again")
    if got != expected:
        differ = [part for part in expected if got.get(part) != expected[part]]
        raise UserError(
            f"{folder} was trained with another model (its {' and '.join(differ)} differs: code or parameters); give "
            "the same one, or give `model_name` in both places if you know that they are the same"
        )


def write_config(config: Config, out: Path) -> None:
    """config.json, and its twin next to the checkpoints: a damaged one is read from the other."""
    content = (json.dumps(config.to_json(), indent=2) + "\n").encode()
    write_atomic(out / CONFIG, content)
    make_folder((out / TWIN).parent)
    write_atomic(out / TWIN, content)


def read_config(folder: Path) -> Config:
    """The configuration of a run. A missing or damaged config.json is passed over for its twin, with a warning."""
    path, twin = folder / CONFIG, folder / TWIN
    if not path.is_file() and not twin.is_file():
        raise UserError(f"{folder} is not a run folder (it has no config.json); give the --out of an 'eblvm train'")
    try:
        return _config_of(path)
    except UserError as error:
        if not twin.is_file():
            raise
        try:
            config = _config_of(twin)
        except UserError:
            raise error from None
        if path.is_file() and _is_sound(path):  # of another version, or edited: not damage
            raise
        print(f"warning: {error}; {twin} is used", file=sys.stderr)
        return config


def _config_of(path: Path) -> Config:
    """A file's configuration; anything else is an error that names the file."""
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({reason(error)}); {ADVICE}") from None
    try:
        config = Config.from_json(tree)
        config.check()
        return config
    except UserError as error:
        raise UserError(f"{path}: {error}; {ADVICE}") from None


def _is_sound(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError, RecursionError):
        return False
