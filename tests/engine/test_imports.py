"""Every name that a file imports from this project is there, also where the import is inside a function."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("engine", "kernels", "bench", "tests")


def file_of(module: str) -> Path | None:
    parts = module.removeprefix("eblvm.").split(".")
    if parts[0] not in PACKAGES or (parts[0] != "tests" and not module.startswith("eblvm.")):
        return None
    path = ROOT.joinpath(*parts)
    return next((p for p in (path / "__init__.py", path.with_suffix(".py"), path) if p.exists()), path)


@cache
def names_in(path: Path) -> frozenset[str]:
    """The names that a file defines, under conditions too, and the modules next to it if it is a package's."""
    names = {p.stem for p in path.parent.iterdir()} if path.name == "__init__.py" else set()
    nodes: list[ast.AST] = [ast.parse(path.read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        nodes += ast.iter_child_nodes(node)
    return frozenset(names)


def missing(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level or (imported := file_of(node.module or "")) is None:
            continue
        for alias in node.names:
            if imported.is_dir():  # a package without __init__.py
                there = (imported / alias.name).exists() or (imported / f"{alias.name}.py").exists()
            else:
                there = imported.exists() and alias.name in names_in(imported)
            if not there:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.module} has no {alias.name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_what_files_import_from_each_other_is_there(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert len(files) > 30
    assert [line for path in files for line in missing(path)] == []


def test_a_stale_import_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "new.py").write_text("def f():\n    from eblvm.engine.old import g\n")
    (tmp_path / "engine" / "other.py").write_text("from eblvm.engine.new import f, g\n")
    told = [line for name in ("new", "other") for line in missing(tmp_path / "engine" / f"{name}.py")]
    assert told == ["engine/new.py:2: eblvm.engine.old has no g", "engine/other.py:1: eblvm.engine.new has no g"]
