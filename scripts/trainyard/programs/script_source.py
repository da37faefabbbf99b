"""The syntax trees of a training script, and of the modules beside it that it imports. Nothing of it runs."""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from trainyard.utils.errors import UserError

MOST_FILES: Final = 60  # of a script: the nearest modules first
# A module without any of these words declares no option and does nothing that is looked for: its imports are read.
_RELEVANT: Final = re.compile(
    rb"argument|parse|click|typer|tyro|dataclass|draccus|flags|fire|str2bool|strtobool|environ|getenv|signal|SLURM"
    rb"|scontrol|init_process_group|mkdir|makedirs|wandb|argv"
)
_IMPORT: Final = re.compile(r"^[ \t]*(?:from|import)[ \t][^#;\n]*", re.M)


@dataclass(frozen=True)
class SourceFile:
    """A file of Python and what is looked up in it."""

    path: Path
    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree in the order of the lines."""
        nodes = list(ast.walk(self.tree))
        return sorted(nodes, key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))

    @cached_property
    def calls(self) -> list[ast.Call]:
        """All calls in the order of the lines."""
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node around a node."""
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def imported(self) -> dict[str, str]:
        """The full names of what the file imports, by the names that it has there."""
        names = dict[str, str]()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                names |= {alias.asname: alias.name for alias in node.names if alias.asname}
            elif isinstance(node, ast.ImportFrom):
                names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        return names

    def name(self, node: ast.AST) -> str:
        """The full name of an expression, as `argparse.ArgumentParser`, however it was imported; "" without a name."""
        if isinstance(node, ast.Name):
            return self.imported.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            owner = self.name(node.value)
            return f"{owner}.{node.attr}" if owner else node.attr
        return ""

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, the nearest first."""
        while parent := self.parents.get(node):
            yield parent
            node = parent

    def texts(self, node: ast.AST) -> Iterator[str]:
        """The literal texts within a node."""
        constants = (inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant))
        return (value for value in constants if isinstance(value, str))


@dataclass(frozen=True)
class Source:
    """A script, and the modules beside it that it imports, the nearest first."""

    main: SourceFile
    modules: list[SourceFile] = field(default_factory=list)
    is_whole: bool = True  # False if it has more modules than were read, or one that is no Python

    @property
    def files(self) -> list[SourceFile]:
        """The script, then its modules."""
        return [self.main, *self.modules]

    @cached_property
    def imports(self) -> set[str]:
        """The first parts of the names of all modules that are imported, such as `torch`."""
        return {name.partition(".")[0] for file in self.files for name, _ in _imports(file)}

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
        """The functions and methods by name, the first of each name."""
        return _first_of_each_name(self.files, (ast.FunctionDef, ast.AsyncFunctionDef))

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """The classes by name, the first of each name."""
        return _first_of_each_name(self.files, (ast.ClassDef,))


def read_source(path: Path, roots: list[Path] | None = None) -> Source:
    """Parse a script and its modules, which are in the script's folder or in `roots`.

    Raises:
        UserError: the script cannot be read, or is not Python.
    """
    main = SourceFile(path, parse(path))
    source, waiting = Source(main), [(path.parent, _imports(main))]
    is_whole, read = True, {path.resolve()}
    roots = [path.parent, *(roots or [])]
    while waiting:
        folder, names = waiting.pop(0)
        for name, level in names:
            module = _find_module(name, _package_folders(folder, level) if level else roots)
            if module is None or module.resolve() in read:
                continue
            if len(read) >= MOST_FILES:
                is_whole = False
                break
            read.add(module.resolve())
            try:
                text = module.read_bytes()
                tree = ast.parse(text if _RELEVANT.search(text) else _imports_in(text))
            except (OSError, SyntaxError, ValueError, RecursionError):
                is_whole = False
                continue
            tree.body = [node for node in tree.body if not _runs_as_main(node)]
            file = SourceFile(module, tree)
            source.modules.append(file)
            waiting.append((module.parent, _imports(file)))
    return Source(main, source.modules, is_whole)


def _imports_in(text: bytes) -> str:
    """The lines of a module that import, as far as each is complete."""
    lines = (line.strip().removesuffix("\\").strip() for line in _IMPORT.findall(text.decode("utf-8", "replace")))
    return "\n".join(f"{line.partition('(')[0]}*" if line.endswith("(") else line for line in lines if _is_whole(line))


def _is_whole(line: str) -> bool:
    return re.fullmatch(r"(from\s+[\w.]+\s+import\s+(\(|[\w*., ]*[\w*])|import\s+[\w., ]*\w)", line) is not None


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file.

    Raises:
        UserError: it cannot be read, or is not Python.
    """
    try:
        return ast.parse(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): give the path of your training script") from None
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not a Python script ({error})") from None


def is_file(path: Path) -> bool:
    """Whether there is a file; False where it cannot be asked for."""
    try:
        return path.is_file()
    except OSError:
        return False


def arguments(call: ast.Call) -> dict[str, ast.expr]:
    """The arguments of a call that are given by name."""
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


def literal(node: ast.expr | None) -> Any:
    """The value of an expression of literals; None for others."""
    with suppress(ValueError, TypeError, RecursionError):
        return ast.literal_eval(node) if node is not None else None
    return None


def is_literal(node: ast.expr) -> bool:
    """Whether an expression is made of literals."""
    return literal(node) is not None or (isinstance(node, ast.Constant) and node.value is None)


def method(call: ast.Call) -> str:
    """The last part of the name of what is called."""
    return method_name(call.func)


def method_name(node: ast.expr) -> str:
    """The last part of the name of an expression; "" without a name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _imports(file: SourceFile) -> list[tuple[str, int]]:
    """The modules that a file imports, and of a relative import, its number of dots."""
    names = dict[tuple[str, int], None]()
    for node in file.nodes:
        if isinstance(node, ast.Import):
            names |= {(alias.name, 0): None for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names |= {(module, node.level): None} if module else {}
            inner = (f"{module}.{alias.name}".lstrip(".") for alias in node.names if alias.name != "*")
            names |= {(name, node.level): None for name in inner}
    return list(names)


def _package_folders(folder: Path, level: int) -> list[Path]:
    return [folder, *folder.parents][level - 1 : level]


def _find_module(name: str, folders: list[Path]) -> Path | None:
    for folder in folders:
        module = folder / name.replace(".", "/")
        for file in (module.with_name(f"{module.name}.py"), module / "__init__.py"):
            if is_file(file):
                return file
    return None


def _runs_as_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.dump(node.test)


def _first_of_each_name(files: list[SourceFile], kinds: tuple[type, ...]) -> dict[str, Any]:
    named = dict[str, Any]()
    for file in files:
        for node in file.nodes:
            if isinstance(node, kinds):
                named.setdefault(node.name, node)  # type: ignore[attr-defined]
    return named
