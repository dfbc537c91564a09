"""``python -m scripts.plain_names``: names of the product that say nothing, and class names that are used twice.

A name such as ``found`` or ``one`` says where a value comes from, not what it is.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SIDES = ("tasks", "coordinator", "src/unstuck")
VAGUE = {"one", "found", "known", "told", "wanted", "asked", "given", "made", "said", "seen"}
VAGUE |= {"its", "there", "standing", "stands"}


def bound_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and name of each variable, argument and field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def main() -> int:
    """Print each place. Returns 1 if there is one."""
    places: list[str] = []
    classes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(path for side in SIDES for path in (ROOT / side).rglob("*.py")):
        if (ROOT / "src/unstuck") in path.parents and path.resolve() != path:
            continue  # seen through a link
        tree, name = ast.parse(path.read_text()), path.relative_to(ROOT)
        places += [f"{name}:{line}: {word}" for line, word in bound_names(tree) if word in VAGUE]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{name}:{node.lineno}")
    places += [f"{' and '.join(at)}: class {name}" for name, at in classes.items() if len(at) > 1]
    sys.stdout.write("\n".join([*places, f"{len(places)} names to change\n"]))
    return 1 if places else 0


if __name__ == "__main__":
    sys.exit(main())
