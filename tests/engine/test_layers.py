"""Layers import downwards only: the graph of runtime imports between packages has no upward edge and no cycle."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# From the lowest to the highest. A module may import from its own layer and from those before it.
LAYERS = (
    ("kernels",),
    ("engine.errors", "engine.options", "engine.values", "engine.tables", "engine.types", "engine.legacy"),
    (
        "engine.damage",
        "engine.durable",
        "engine.machine",
        "engine.progress",
        "engine.versions",
    ),
    ("engine.plotting",),
    ("engine.autodiff",),
    ("engine.optim",),
    ("engine.nets", "engine.models"),
    ("engine.methods",),
    ("engine.data",),
    ("engine.training.step",),
    ("engine.config",),
    ("engine.recipes",),
    ("engine.planning",),
    ("engine.runs", "engine.training"),
    ("engine.sampling",),
    ("engine.evaluation",),
    ("engine.reporting",),
    ("engine.selftest",),
    ("engine.previews", "engine.sharing", "engine.notebook"),
    ("engine.run", "engine.api", "engine.public"),
    ("engine.cli",),
    ("bench",),
)


def modules() -> dict[str, Path]:
    found = {}
    for package in ("kernels", "engine", "bench"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(p for p in parts if p != "__init__")] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of this project that a file imports when it runs, inside functions or not; not for type checkers."""
    tree = ast.parse(path.read_text())
    typed = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for part in block.body
        for node in ast.walk(part)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typed:
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        for name in names:
            name = name.removeprefix("eblvm.")
            if name in known:
                found.add(name)
    return found


def layer_of(module: str) -> int:
    for i, packages in enumerate(LAYERS):
        if any(module == p or module.startswith(f"{p}.") for p in packages):
            return i
    raise AssertionError(f"{module} belongs to no layer; give it one here")


def test_no_module_imports_from_a_higher_layer() -> None:
    known = modules()
    upward = [
        f"{module} -> {target}"
        for module, path in known.items()
        if module != "engine"
        for target in imported(path, known)
        if target != "engine" and layer_of(target) > layer_of(module)
    ]
    assert not upward, "\n".join(sorted(upward))


def test_engine_never_imports_bench() -> None:
    known = modules()
    assert not [m for m, path in known.items() if m.startswith("engine") for t in imported(path, known) if "bench" in t]


@pytest.mark.parametrize("package", ["kernels", "engine", "bench"])
def test_every_folder_is_a_package_with_modules(package: str) -> None:
    for folder in (ROOT / package).rglob("*"):
        if folder.is_dir() and list(folder.glob("*.py")):
            assert (folder / "__init__.py").exists(), folder
