"""The syntax trees of a training script, and of the modules beside it that it imports. Nothing of it runs."""

import ast
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from trainyard.utils.errors import UserError

_LOGS_TO_WANDB: Final = ("transformers", "trl", "ultralytics")  # if `wandb` is installed
MOST_FILES: Final = 60  # of a script: the nearest modules first


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
    def imports(self) -> list[tuple[str, str, int]]:
        """What the file imports: its name there, its full name, and for a relative import the number of dots."""
        imported = list[tuple[str, str, int]]()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                imported += [(alias.asname or "", alias.name, 0) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                package = f"{node.module}." if node.module else ""
                imported += [(alias.asname or alias.name, package + alias.name, node.level) for alias in node.names]
        return imported

    @cached_property
    def _full_names(self) -> dict[str, str]:
        return {name: full_name for name, full_name, _ in self.imports}

    def name(self, node: ast.AST) -> str:
        """The full name of an expression, as `argparse.ArgumentParser`, however it was imported; "" without a name."""
        if isinstance(node, ast.Name):
            return self._full_names.get(node.id, node.id)
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

    files: list[SourceFile]  # the script is the first
    is_whole: bool = True  # False if it has more modules than were read, or one that is no Python

    @cached_property
    def imports(self) -> set[str]:
        """The first parts of the names of all modules that are imported, such as `torch`."""
        return {name.partition(".")[0] for file in self.files for _, name, _ in file.imports}

    @cached_property
    def packages(self) -> set[str]:
        """The imports that are neither Python's own nor modules beside the script."""
        folder = self.files[0].path.parent
        modules = [file.path.relative_to(folder) for file in self.files if file.path.is_relative_to(folder)]
        own = {module.with_suffix("").parts[0] for module in modules}
        return self.imports - own - sys.stdlib_module_names

    @cached_property
    def uses_wandb(self) -> bool:
        """Whether it imports or names W&B, or a library that logs to W&B by itself."""
        texts = list[str]()
        for file in self.files:
            texts += file.texts(file.tree)
            texts += [name for _, name, _ in file.imports]
        return any("wandb" in text.lower() for text in texts) or not self.imports.isdisjoint(_LOGS_TO_WANDB)

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
        """The functions and methods by name, the first of each name."""
        return _first_of_each_name(self.files, (ast.FunctionDef, ast.AsyncFunctionDef))

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """The classes by name, the first of each name."""
        return _first_of_each_name(self.files, (ast.ClassDef,))


def read_source(path: Path, roots: Sequence[Path] = ()) -> Source:
    """Parse a script and its modules, which are in the script's folder or in `roots`.

    Raises:
        UserError: the script cannot be read, or is not Python.
    """
    files = [SourceFile(path, parse(path))]
    read = {path.resolve()}
    is_whole = True
    for file in files:  # to which the modules are added that a file imports
        for module in _find_modules(file, [path.parent, *roots]):
            if module.resolve() in read:
                continue
            if len(read) >= MOST_FILES:
                return Source(files, is_whole=False)
            read.add(module.resolve())
            try:
                tree = parse(module)
            except UserError:
                is_whole = False
                continue
            tree.body = [node for node in tree.body if not _runs_as_main(node)]
            files.append(SourceFile(module, tree))
    return Source(files, is_whole)


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file.

    Raises:
        UserError: it cannot be read, or is not Python.
    """
    try:
        return ast.parse(path.read_bytes(), path.name)
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


def _find_modules(file: SourceFile, roots: Sequence[Path]) -> Iterator[Path]:
    """The files of the modules that a file imports, or from which it imports a name."""
    packages = [file.path.parent, *file.path.parent.parents]
    for _, full_name, level in file.imports:
        if not level and full_name.partition(".")[0] == "wandb":  # a copy on PYTHONPATH reads a command line of its own
            continue
        for name in filter(None, (full_name, full_name.rpartition(".")[0])):
            for folder in packages[level - 1 : level] if level else roots:
                module = folder / name.replace(".", "/")
                yield from filter(is_file, (module.with_suffix(".py"), module / "__init__.py"))


def _runs_as_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.dump(node.test)


def _first_of_each_name(files: list[SourceFile], kinds: tuple[type, ...]) -> dict[str, Any]:
    named = dict[str, Any]()
    for file in files:
        for node in file.nodes:
            if isinstance(node, kinds):
                named.setdefault(node.name, node)  # type: ignore[attr-defined]
    return named
