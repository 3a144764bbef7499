"""One name, one meaning: no public class, alias or module of the engine has the name of another one."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ENGINE = Path(__file__).parents[2] / "engine"
# A concept may have a file in each of these rooms: its mathematics, its options, its modules, its command.
ROOMS = {"methods", "models", "nets", "cli"}
CONTRACT = "base"  # of every room: what its files have in common
GIVEN = "custom"  # in Python, by the user: a data set, a model


def public_names(path: Path) -> Iterator[str]:
    """Classes, and aliases of types, which begin with a capital and are no constant."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [t.id for t in targets if isinstance(t, ast.Name)]
            yield from (name for name in names if name[0].isupper() and not name.isupper())


def test_no_class_or_alias_has_two_homes() -> None:
    homes = defaultdict(list)
    for path in ENGINE.rglob("*.py"):
        for name in public_names(path):
            homes[name].append(str(path.relative_to(ENGINE)))
    assert len(homes) > 200
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_no_module_has_the_name_of_another_one() -> None:
    rooms = defaultdict(list)
    for path in ENGINE.rglob("*.py"):
        if path.stem not in ("__init__", CONTRACT, GIVEN):
            rooms[path.stem].append(path.relative_to(ENGINE).parts[0])
    repeated = {name: found for name, found in rooms.items() if len(found) > 1}
    assert not {name: found for name, found in repeated.items() if not set(found) <= ROOMS | {"planning", "evaluation"}}
    for name, found in repeated.items():
        assert len(set(found)) == len(found), f"{name} is twice in one room"
