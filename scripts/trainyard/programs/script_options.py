"""The options of a training script, read from its source without running it: of argparse, click or Hydra."""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainyard.config.parser import read_file
from trainyard.config.placeholders import dotted_items
from trainyard.utils.errors import UserError

_OUTPUT: Final = re.compile(
    r"(out|output|save|log|results?|exp|experiment|work|run|ckpt|checkpoints?)_?(dir|folder|path|file)|out|outf|output|save"
)
_INPUT: Final = re.compile(
    r"((\w+_)?(data|dataset|input)|train|val|test)_?(dir|folder|path|root|file)|data|dataset|root"
)
_RESUME: Final = re.compile(r"resume(_from)?(_(checkpoint|ckpt|path|file|dir))?|(load_|from_)?(checkpoint|ckpt)")


@dataclass(frozen=True)
class ScriptOption:
    """An option of a script."""

    flag: str  # "--learning-rate"; of Hydra, a dotted key: "optimizer.lr"; of a positional argument, its name
    default: Any = None  # None if it has none, or one that only running the script would tell
    choices: tuple[Any, ...] = ()
    is_required: bool = False
    is_flag: bool = False

    @property
    def key(self) -> str:
        """Its name as a key of the config: "learning_rate", "optimizer.lr"."""
        return self.flag.lstrip("-").replace("-", "_")

    @property
    def is_input(self) -> bool:
        """Whether it names a file or folder that the script reads, which may be relative to its working directory."""
        name = self.key.rpartition(".")[2].lower()
        return isinstance(self.default, str) and not self.is_output and _INPUT.fullmatch(name) is not None

    @property
    def is_output(self) -> bool:
        """Whether it names the folder, or a file, that the script writes to."""
        takes_path = self.flag.startswith("-") and not self.is_flag and isinstance(self.default, str | None)
        return takes_path and _OUTPUT.fullmatch(self.key.rpartition(".")[2].lower()) is not None


@dataclass(frozen=True)
class Script:
    """A training script and its options."""

    path: Path
    options: tuple[ScriptOption, ...]
    uses_hydra: bool
    checkpoint: str = ".pt"  # the suffix of its checkpoints, as far as its source tells

    @property
    def output(self) -> ScriptOption | None:
        """The first option that names where it writes."""
        return next((option for option in self.options if option.is_output), None)

    @property
    def resume(self) -> str:
        """The words that name a checkpoint to resume from, as `--resume {resume_from}`; "" without an option for it."""
        value = "={resume_from}" if self.uses_hydra else " {resume_from}"
        for option in self.options:
            is_option = self.uses_hydra or option.flag.startswith("-")
            if is_option and _RESUME.fullmatch(option.key.rpartition(".")[2].lower()):
                return option.flag + value * (not option.is_flag)
        return ""


def read_script(path: Path) -> Script:
    """The options of a script, also those that it takes from a module beside it.

    Raises:
        UserError: it cannot be read, or is not Python.
    """
    tree = _parse(path)
    if (main := next(_calls(tree, "main", of="hydra"), None)) is not None:
        found = tuple(_hydra_options(path.parent, _arguments(main)))
        return Script(path, found, uses_hydra=True, checkpoint=_checkpoint_suffix([tree]))
    trees = [tree, *map(_parse, _local_modules(tree, path.parent))]
    options = {option.flag: option for each in trees for option in _options(each)}
    return Script(path, tuple(options.values()), uses_hydra=False, checkpoint=_checkpoint_suffix(trees))


def _checkpoint_suffix(trees: list[ast.Module]) -> str:
    """The suffix of a checkpoint file that a call of `save` names, or else any other part of the source."""
    saving = (call for tree in trees for call in _calls(tree, "save"))
    for texts in map(_texts, (*saving, *trees)):
        for text in texts:
            if found := re.search(r"\.(pth\.tar|pth|pt|ckpt)$", text):
                return found[0]
    return Script.checkpoint


def _texts(tree: ast.AST) -> Iterator[str]:
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return (value for value in constants if isinstance(value, str))


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): give the path of your training script") from None
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path}: is not a Python script ({error})") from None


def _local_modules(tree: ast.Module, folder: Path) -> list[Path]:
    """The files of the modules that a script imports from its own folder."""
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    files = (folder / f"{name.replace('.', '/')}.py" for name in dict.fromkeys(filter(None, names)))
    return [file for file in files if file.is_file()]


def _calls(tree: ast.Module, name: str, *, of: str = "") -> Iterator[ast.Call]:
    """The calls of a function or method in the order of the source; `of`: only as attribute of this name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called, owner = node.func, ""
        if isinstance(called, ast.Attribute):
            owner = called.value.id if isinstance(called.value, ast.Name) else ""
        found = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if found == name and of in ("", owner):
            yield node


def _arguments(call: ast.Call) -> dict[str, ast.expr]:
    return {each.arg: each.value for each in call.keywords if each.arg}


def _literal(node: ast.expr | None) -> Any:
    """The value of an expression of literals; None for others."""
    with suppress(ValueError, TypeError):
        return ast.literal_eval(node) if node is not None else None
    return None


def _options(tree: ast.Module) -> Iterator[ScriptOption]:
    """What calls of argparse's `add_argument` and of click's `option` and `argument` declare."""
    for call in [each for name in ("add_argument", "option", "argument") for each in _calls(tree, name)]:
        names = [name for name in map(_literal, call.args) if isinstance(name, str)]
        given, flags = _arguments(call), [name for name in names if name.startswith("-")]
        if not names:
            continue
        kind, choices = given.get("type"), _literal(given.get("choices"))
        if isinstance(kind, ast.Call) and kind.args:  # click.Choice
            choices = _literal(kind.args[0])
        needs_value = not {"nargs", "default"} & given.keys() if not flags else _literal(given.get("required")) is True
        yield ScriptOption(
            next((flag for flag in flags if flag.startswith("--")), names[0]).partition("/")[0],
            default=_literal(given.get("default")),
            choices=tuple(choices) if isinstance(choices, (list, tuple)) else (),
            is_required=needs_value,
            is_flag=_literal(given.get("is_flag")) is True or "store_" in str(_literal(given.get("action"))),
        )


def _hydra_options(folder: Path, main: dict[str, ast.expr]) -> Iterator[ScriptOption]:
    """The keys of a Hydra config and of the groups in its list of defaults."""
    configs = folder / str(_literal(main.get("config_path")) or ".")
    name = str(_literal(main.get("config_name")) or "config").removesuffix(".yaml")
    content = _read_mapping(configs / f"{name}.yaml")
    found: dict[str, Any] = {}
    for entry in content.pop("defaults", []):
        for group, choice in entry.items() if isinstance(entry, dict) else ():
            found |= dotted_items(_read_mapping(configs / str(group) / f"{choice}.yaml"), f"{group}.")
    content.pop("hydra", None)
    for key, value in (found | dict(dotted_items(content))).items():
        yield ScriptOption(key, default=value)


def _read_mapping(path: Path) -> dict[str, Any]:
    content = read_file(path) if path.exists() else {}
    return dict(content) if isinstance(content, dict) else {}
