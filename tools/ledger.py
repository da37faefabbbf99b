"""Counts what makes the code hard to hold in one's head. `tests/unit/test_ledger.py` lets these figures only fall."""

import ast
import json
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
CODE: Final = ROOT / "scripts"
LEDGER: Final = ROOT / "tools" / "ledger.json"
_LAYOUT: Final = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    tokenize.ENCODING,
}  # fmt: skip
# The classes of sections, by which code asks what a sweep, a study or a trial is.
_KINDS: Final = re.compile(
    r"(Command|Function|Train|Trees|Program|Script|Training)(Sweep|Scaling)|UserProgram|Train|Trees"
)


def count() -> dict[str, int]:
    """The figures of the ledger, by name."""
    figures = Counter[str]()
    arrows = set[tuple[str, str]]()
    for path in sorted(CODE.rglob("*.py")):
        package = _package_of(path)
        with path.open("rb") as file:
            tokens = sum(token.type not in _LAYOUT for token in tokenize.tokenize(file.readline))
        figures[f"tokens in {package}"] += tokens
        figures["tokens"] += tokens
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            figures["constants of seconds"] += _is_constant_of_seconds(node)
            figures["starts of threads"] += _starts_thread(node)
            figures["branches on kinds"] += _asks_for_kind(node)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trainyard."):
                imported = (node.module or "").split(".")[1]
                if imported != package:
                    arrows.add((package, imported))
    figures["arrows between packages"] = len(arrows)
    figures["options"] = (ROOT / "docs" / "options.md").read_text().count("\n| `")
    return dict(sorted(figures.items()))


def _package_of(path: Path) -> str:
    parts = path.relative_to(CODE).parts
    return parts[1] if len(parts) > 2 else "scripts"


def _is_constant_of_seconds(node: ast.AST) -> bool:
    if isinstance(node, ast.AnnAssign):
        targets: list[ast.expr] = [node.target]
    elif isinstance(node, ast.Assign):
        targets = node.targets
    else:
        return False
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return any(name.isupper() and "SECONDS" in name for name in names)


def _starts_thread(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    return name.rpartition(".")[2] in ("Thread", "Timer", "ThreadPoolExecutor")


def _asks_for_kind(node: ast.AST) -> bool:
    """Whether an expression asks for the class of a section, or a `case` matches it."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
        return any(_KINDS.fullmatch(name) for name in _names_in(node.args[1]))
    if isinstance(node, ast.MatchClass):
        return _KINDS.fullmatch(ast.unparse(node.cls)) is not None
    return isinstance(node, ast.Attribute) and node.attr in ("is_command", "is_function")


def _names_in(node: ast.AST) -> list[str]:
    return [child.id for child in ast.walk(node) if isinstance(child, ast.Name)]


if __name__ == "__main__":
    found = count()
    if "--write" in sys.argv:
        LEDGER.write_text(json.dumps(found, indent=2) + "\n")
    for name, figure in found.items():
        print(f"{figure:>7} {name}")
