"""The options of a training script, read from its source without running it.

Read are argparse, click, Typer, Hydra, and classes or functions whose fields are options: of tyro, HfArgumentParser,
simple-parsing, pyrallis, draccus, jsonargparse and fire; flags of absl, too.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from trainyard.config.parser import read_file
from trainyard.config.placeholders import ALL_ARGUMENTS, Command, Switch, SwitchOf, dotted_items
from trainyard.programs.parser_uses import refuses_other_options
from trainyard.programs.script_source import (
    Source,
    SourceFile,
    arguments,
    is_literal,
    literal,
    method,
    method_name,
    read_source,
)
from trainyard.programs.started_scripts import find_started
from trainyard.utils.errors import UserError

_OUTPUT: Final = re.compile(
    r"(out|output|save|log|results?)_?(dir|folder|path|file)|out|outf|output|save"
    r"|(exp|experiment|work|run|ckpt|checkpoints?)_?(dir|folder)|checkpoints_?path"  # --ckpt-path is read
)
_INPUT: Final = re.compile(
    r"((\w+_)?(data|dataset|input)|train|val|test)_?(dir|folder|path|root|file)|data|dataset|root"
)
_RESUME: Final = re.compile(
    r"resume(_from)?(_(checkpoint|ckpt|path|file|dir))?|(load_|from_)?(checkpoint|ckpt)(_path)?"
)
# How a program reads its command line, by the beginning of the name of what it calls for it.
Library = Literal["argparse", "click", "typer", "tyro", "words", "fire", "absl", "hydra", ""]
_LIBRARIES: Final[Mapping[str, Library]] = {
    "argparse.ArgumentParser": "argparse",
    "click.command": "click",
    "click.group": "click",
    "typer.": "typer",
    "tyro.": "tyro",
    "fire.Fire": "fire",
    "absl.flags.DEFINE": "absl",
    "absl.app.run": "absl",
    # An option of these takes a word, as `--amp false`.
    "transformers.HfArgumentParser": "words",
    "trl.TrlParser": "words",
    "simple_parsing.": "words",
    "jsonargparse.": "words",
    "pyrallis.": "words",
    "draccus.": "words",
    "lightning.pytorch.cli.LightningCLI": "words",
    "pytorch_lightning.cli.LightningCLI": "words",
}
_SPLIT_WORDS: Final = ("tyro", "words", "fire", "absl")  # for which `--batch-size` and `--batch_size` are the same


@dataclass(frozen=True)
class ScriptOption:
    """An option of a script."""

    flag: str  # "--learning-rate"; of Hydra, a dotted key: "optimizer.lr"; of a positional argument, its name
    default: Any = None  # None if it has none, or one that only running the script would tell
    choices: tuple[Any, ...] = ()
    is_required: bool = False
    is_flag: bool = False  # it takes no value
    may_stand_alone: bool = field(default=False, compare=False)  # its value may be left out
    names: tuple[str, ...] = field(default=(), compare=False)  # all, such as -b and --batch-size
    switch: Switch | None = field(default=None, compare=False)  # the words for true and false, if they are certain
    problem: str = field(default="", compare=False)  # why they are not, or not the only ones
    path: Path | None = field(default=None, compare=False)  # where it is declared
    line: int = field(default=0, compare=False)

    @property
    def key(self) -> str:
        """Its name as a key of the config: "learning_rate", "optimizer.lr"."""
        return self.flag.lstrip("-").replace("-", "_")

    @property
    def is_boolean(self) -> bool:
        """Whether it certainly has no other values than true and false."""
        is_key = not self.flag.startswith("-")  # of Hydra
        return isinstance(self.default, bool) and (is_key or (self.switch is not None and not self.problem))

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
    library: Library = ""  # "" if it is unknown how it reads its command line
    is_strict: bool = False  # it certainly refuses options that are not among `options`
    source: Source | None = field(default=None, compare=False, repr=False)

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

    @property
    def files(self) -> list[SourceFile]:
        """The script and the modules that were read."""
        return self.source.files if self.source else []

    @property
    def flags(self) -> list[str]:
        """All names of options, such as -b, --batch-size and --no-amp."""
        return [name for option in self.options for name in option.names if name.startswith("-")]

    def find(self, flag: str) -> ScriptOption | None:
        """The option that the script takes a word such as `--batch-size` for."""
        for option in self.options:
            if flag in option.names:
                return option
        if self.library in _SPLIT_WORDS:
            plain = flag.replace("-", "_")
            return next((each for each in self.options if plain in (_plain(name) for name in each.names)), None)
        if self.library == "argparse" and flag.startswith("--"):  # which takes unique abbreviations
            begun = [each for each in self.options if any(name.startswith(flag) for name in each.names)]
            return begun[0] if len(begun) == 1 else None
        return None

    def switch(self, flag: str) -> Switch | None:
        """The words that turn an option on and off; None if they are not certain."""
        if option := self.find(flag):
            return option.switch
        return _switch_of_library(self.library, flag)


def _plain(name: str) -> str:
    return name.replace("-", "_")


def read_script(path: Path, roots: list[Path] | None = None) -> Script:
    """The options of a script, also those that it takes from modules in its folder or in `roots`.

    Raises:
        UserError: it cannot be read, or is not Python.
    """
    source = read_source(path, roots)
    main, suffix = source.main, _checkpoint_suffix(source)
    for call in main.calls:
        if main.name(call.func) == "hydra.main":
            from_config = tuple(_hydra_options(path.parent, arguments(call)))
            return Script(path, from_config, uses_hydra=True, checkpoint=suffix, library="hydra", source=source)
    library = _library(source)
    options = dict[str, ScriptOption]()
    for option in _Options(source, library).read():
        options.setdefault(option.flag, option)
    is_strict = source.is_whole and _is_strict(source, library)
    return Script(path, tuple(options.values()), False, suffix, library, is_strict, source)


def find_switches(command: Command, start: Path) -> SwitchOf:
    """How the script that gets `{args}` of a command takes true and false; `start` is the folder of the command.

    The script is read when a boolean asks for it, and once.
    """

    @cache
    def script() -> Script | None:
        started = [each for each in find_started(command, start).scripts if ALL_ARGUMENTS & set(each.words)]
        if len(started) == 1:
            with suppress(UserError):  # it is no Python
                return read_script(started[0].path, list(started[0].roots))
        return None

    def switch_of(flag: str) -> Switch | None:
        reader = script()
        return reader.switch(flag) if reader else None

    return switch_of


def _library(source: Source) -> Library:
    """How a script reads its command line: what it calls itself comes before what its modules call."""
    for files in ([source.main], source.modules):
        libraries = set[Library]()
        for file in files:
            used = [file.name(call.func) for call in file.calls]
            used += [file.name(each) for node in file.nodes for each in getattr(node, "decorator_list", [])]
            libraries |= {kind for name in used for start, kind in _LIBRARIES.items() if name.startswith(start)}
        if len(libraries) == 1:
            return libraries.pop()
        if libraries:
            return ""
    return ""


def _switch_of_library(library: Library, flag: str) -> Switch | None:
    """How a library turns an option on and off whose declaration is not in the source."""
    prefix, dot, name = flag.removeprefix("--").rpartition(".")
    match library:
        case "tyro":
            return Switch((flag,), (f"--{prefix}{dot}no-{name}",))
        case "words":
            return Switch((flag, "true"), (flag, "false"))
        case "fire":
            return Switch((f"{flag}=True",), (f"{flag}=False",))
        case "absl":
            return Switch((flag,), (f"--no{name}",))
    return None


def _checkpoint_suffix(source: Source) -> str:
    """The suffix of a checkpoint file that a call of `save` names, or else any other part of the source."""
    saving = [(file, call) for file in source.files for call in file.calls if method(call) == "save"]
    for file, node in (*saving, *((file, file.tree) for file in source.files)):
        for text in file.texts(node):
            if suffix := re.search(r"\.(pth\.tar|pth|pt|ckpt)$", text):
                return suffix[0]
    return Script.checkpoint


# ---- options by library


class _Options:
    """The options that the calls, classes and functions of a source declare."""

    def __init__(self, source: Source, library: Library) -> None:
        self._source, self._library = source, library
        self._changed = dict[str, ast.expr]()  # defaults by `set_defaults`
        self._changes_any = False
        for file in source.files:
            for call in file.calls:
                if method(call) == "set_defaults":
                    self._changed |= arguments(call)
                    self._changes_any |= any(keyword.arg is None for keyword in call.keywords)

    def read(self) -> Iterator[ScriptOption]:
        """The options; the first of each name counts."""
        for file in self._source.files:
            yield from self._of_argparse(file)
            for call in file.calls:
                name = file.name(call.func)
                if name in ("click.option", "click.argument"):
                    yield from self._of_click(file, call)
                elif re.fullmatch(r"absl\.flags\.DEFINE_\w+", name):
                    yield from self._of_absl(file, call)
        for file in self._source.files if self._library in ("typer", "tyro", "words", "fire") else ():
            yield from self._of_signatures(file)

    # ---- argparse

    def _of_argparse(self, file: SourceFile) -> Iterator[ScriptOption]:
        calls = [call for call in file.calls if method(call) == "add_argument"]
        turned_off = {  # the options that turn others off, by where the value is stored
            str(literal(arguments(call).get("dest"))): _literal_names(call)[-1:]
            for call in calls
            if literal(arguments(call).get("action")) == "store_false"
        }
        for call in calls:
            names, given = _literal_names(call), arguments(call)
            if not names:
                continue
            flags = [name for name in names if name.startswith("-")]
            action = literal(given.get("action"))
            is_pair = "BooleanOptionalAction" in (file.name(given["action"]) if "action" in given else "")
            if is_pair:
                names += [f"--no-{name.removeprefix('--')}" for name in flags if name.startswith("--")]
            main = next((flag for flag in flags if flag.startswith("--")), names[0])
            dest = str(literal(given.get("dest")) or _plain(main.lstrip("-")))
            switch, problem = None, ""
            if is_pair:
                switch = Switch((main,), (f"--no-{main.removeprefix('--')}",))
            elif isinstance(action, str) and action.startswith(("store_", "count")):
                switch, problem = self._flag(main, given, dest, is_on=action == "store_false", partners=turned_off)
            elif "action" not in given or action == "store":
                switch, problem = self._value(file, main, given.get("type"))
            else:
                problem = "it is not certain how its action takes false"
            choices = literal(given.get("choices"))
            needs_value = literal(given.get("required")) is True
            yield ScriptOption(
                main,
                default=literal(self._changed.get(dest, given.get("default"))),
                choices=tuple(choices) if isinstance(choices, (list, tuple)) else (),
                is_required=needs_value if flags else not {"nargs", "default"} & given.keys(),
                is_flag=is_pair or "store_" in str(action) or action in ("count", "append_const"),
                may_stand_alone=literal(given.get("nargs")) in ("?", "*")
                or ("action" in given and action not in ("store", "append")),
                names=tuple(names),
                switch=switch,
                problem=problem,
                path=file.path,
                line=call.lineno,
            )

    def _flag(
        self, flag: str, given: Mapping[str, ast.expr], dest: str, *, is_on: bool, partners: Mapping[str, list[str]]
    ) -> tuple[Switch | None, str]:
        """The switch of an option without a value; `is_on`: its value is true without it."""
        default = self._changed.get(dest, given.get("default"))
        if not is_on and (partner := partners.get(dest)):
            return Switch((flag,), tuple(partner)), ""
        if default is not None and not is_literal(default):
            return None, "its default is known only when it runs"
        if default is not None and bool(literal(default)) != is_on:
            return None, "it is on by default, and no option turns it off"
        if self._changes_any:
            return None, "`set_defaults` may turn it on"
        return Switch((flag,), ()), ""

    def _value(self, file: SourceFile, flag: str, kind: ast.expr | None) -> tuple[Switch | None, str]:
        """The switch of an option with a value, by the words that its type reads."""
        name = file.name(kind) if kind is not None else "str"
        if name == "bool" and self._library == "words":
            return Switch((flag, "true"), (flag, "false")), ""
        if name == "bool":
            return None, "`type=bool` takes any text for true, also `false`"
        if name in ("str", "pathlib.Path"):
            return None, "its value is text, and the text `false` is true for Python"
        if name in ("int", "float"):
            return None, f"its value is a number (`type={name}`)"
        words = _words_of(file, kind, self._source)
        if words is None:
            return None, "it is not certain which word its type reads as false"
        problem = "its type reads any value" if name.endswith(("eval", "loads")) else ""
        return Switch((flag, words[0]), (flag, words[1])), problem

    # ---- click, absl

    def _of_click(self, file: SourceFile, call: ast.Call) -> Iterator[ScriptOption]:
        names, given = _literal_names(call), arguments(call)
        if not names:
            return
        kind, default = given.get("type"), literal(given.get("default"))
        choices = literal(given.get("choices"))
        if isinstance(kind, ast.Call) and kind.args:  # click.Choice
            choices = literal(kind.args[0])
        is_option = method(call) == "option"
        pair = next((name for name in names if "/" in name), "")
        is_flag = literal(given.get("is_flag")) is True or bool(pair)
        flags, switch, problem = _split_names(names), None, ""
        main = next((name for name in flags if name.startswith("--")), flags[0])
        if is_flag:
            switch, problem = _switch_of_names(names, given.get("default"))
        elif type(default) is bool or (kind is not None and file.name(kind) in ("bool", "click.BOOL")):
            switch = Switch((main, "true"), (main, "false"))
        elif is_option:
            problem = "its value is no boolean"
        yield ScriptOption(
            main,
            default=default,
            choices=tuple(choices) if isinstance(choices, (list, tuple)) else (),
            is_required=literal(given.get("required")) is True
            if is_option
            else not {"nargs", "default"} & given.keys(),
            is_flag=is_flag,
            names=tuple(flags),
            switch=switch,
            problem=problem,
            path=file.path,
            line=call.lineno,
        )

    def _of_absl(self, file: SourceFile, call: ast.Call) -> Iterator[ScriptOption]:
        values = [literal(argument) for argument in call.args]
        if not values or not isinstance(values[0], str):
            return
        flag, is_flag = f"--{values[0]}", method(call) in ("DEFINE_bool", "DEFINE_boolean")
        choices = values[2] if method(call) == "DEFINE_enum" and len(values) > 2 else ()
        yield ScriptOption(
            flag,
            default=values[1] if len(values) > 1 else literal(arguments(call).get("default")),
            choices=tuple(choices or ()),
            is_flag=is_flag,
            names=(flag, f"--no{values[0]}") if is_flag else (flag,),
            switch=_switch_of_library("absl", flag) if is_flag else None,
            problem="" if is_flag else "its value is no boolean",
            path=file.path,
            line=call.lineno,
        )

    # ---- classes and functions whose fields or parameters are options

    def _of_signatures(self, file: SourceFile) -> Iterator[ScriptOption]:
        for owner in self._owners(file):
            if isinstance(owner, ast.ClassDef):
                yield from self._of_class(owner, "")
            else:
                yield from self._of_function(owner)

    def _owners(self, file: SourceFile) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
        """The classes and functions that a library makes options of."""
        named = dict[str, None]()
        for call in file.calls:
            name = file.name(call.func)
            is_entry = any(name.startswith(start) for start in _LIBRARIES) and not name.startswith("typer.Typer")
            if not is_entry and method(call) != "add_arguments":  # of simple-parsing
                continue
            for argument in (*call.args, *arguments(call).values()):
                named |= {node.id: None for node in ast.walk(argument) if isinstance(node, ast.Name)}
        for name in named:
            if owner := self._source.classes.get(name) or self._source.functions.get(name):
                yield owner
        for node in file.nodes:
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            decorators = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
            names = [file.name(each) for each in decorators]
            if self._library == "typer" and any(name.endswith((".command", ".callback")) for name in names):
                yield node
            for parameter in node.args.args[:1] if {"pyrallis.wrap", "draccus.wrap"} & set(names) else ():
                config = file.name(parameter.annotation) if parameter.annotation else ""
                if owner := self._source.classes.get(config):
                    yield owner

    def _of_class(
        self, owner: ast.ClassDef, prefix: str, outer: tuple[ast.ClassDef, ...] = ()
    ) -> Iterator[ScriptOption]:
        """The options of a class, which is a base or the type of a field of the `outer` ones."""
        outer = (*outer, owner)
        for base in owner.bases:
            inherited = self._source.classes.get(base.id) if isinstance(base, ast.Name) else None
            if inherited is not None and inherited not in outer:
                yield from self._of_class(inherited, prefix, outer)
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__" and self._library == "fire":
                yield from self._of_function(node)
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            kind, default = ast.unparse(node.annotation).strip("'\""), node.value
            nested = self._source.classes.get(kind)
            if nested is not None and nested not in outer:
                is_flat = self._library == "words"
                yield from self._of_class(nested, prefix if is_flat else f"{prefix}{node.target.id}.", outer)
                continue
            if isinstance(default, ast.Call) and method(default) == "field":
                default = arguments(default).get("default")
            yield self._option_of_field(prefix + node.target.id, kind, default, node, owner)

    def _of_function(self, owner: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ScriptOption]:
        taken = [each for each in (*owner.args.posonlyargs, *owner.args.args) if each.arg not in ("self", "cls")]
        missing: list[ast.expr | None] = [None] * (len(taken) - len(owner.args.defaults))
        defaults = [*missing, *owner.args.defaults]
        parameters = [
            *zip(taken, defaults, strict=True),
            *zip(owner.args.kwonlyargs, owner.args.kw_defaults, strict=True),
        ]
        for parameter, default in parameters:
            kind = ast.unparse(parameter.annotation) if parameter.annotation else ""
            if kind.endswith("Context"):
                continue
            if self._library == "typer":
                yield self._option_of_typer(parameter, default, owner)
            else:
                yield self._option_of_field(parameter.arg, kind, default, parameter, owner)

    def _option_of_field(
        self, name: str, kind: str, default: ast.expr | None, node: ast.AnnAssign | ast.arg, owner: ast.AST
    ) -> ScriptOption:
        flag = f"--{name.replace('_', '-')}" if self._library == "tyro" else f"--{name}"
        is_bool = re.fullmatch(r"(typing\.)?(Optional\[)?bool\]?( \| None)?", kind) is not None or _is_bool(default)
        choices = literal(ast.parse(f"({kind[len('Literal[') : -1]},)").body[0].value) if _is_choice(kind) else ()  # type: ignore[attr-defined]
        switch = _switch_of_library(self._library, flag) if is_bool else None
        if is_bool and self._library == "tyro" and default is None:  # without a default, it takes a word
            switch = Switch((flag, "True"), (flag, "False"))
        negative = switch.off if switch and self._library == "tyro" and len(switch.off) == 1 else ()
        return ScriptOption(
            flag,
            default=literal(default),
            choices=tuple(choices or ()),
            is_required=default is None,
            is_flag=bool(negative),
            names=(flag, *negative),
            switch=switch,
            problem="" if is_bool else "its value is no boolean",
            path=self._path_of(owner),
            line=node.lineno,
        )

    def _option_of_typer(self, parameter: ast.arg, default: ast.expr | None, owner: ast.AST) -> ScriptOption:
        kind, declared = parameter.annotation, None
        if (
            isinstance(kind, ast.Subscript)
            and method_name(kind.value) == "Annotated"
            and isinstance(kind.slice, ast.Tuple)
        ):
            kind, *rest = kind.slice.elts
            declared = next((each for each in rest if isinstance(each, ast.Call)), None)
        elif isinstance(default, ast.Call):  # typer.Option(0.1, "--lr0")
            declared = default
            default = declared.args[0] if declared.args else arguments(declared).get("default")
            default = None if isinstance(default, ast.Constant) and default.value is ... else default
        text = ast.unparse(kind) if kind else ""
        is_argument = default is None if declared is None else method(declared) == "Argument"
        names = [name for name in _literal_names(declared) if name.startswith("-")] if declared else []
        dashed, is_bool = parameter.arg.replace("_", "-"), text == "bool"
        if not names:
            names = [f"--{dashed}/--no-{dashed}" if is_bool else f"--{dashed}"]
        switch, problem = None, "its value is no boolean"
        if is_bool:
            switch, problem = _switch_of_names(names, default)
        flags = _split_names(names)
        main = next((name for name in flags if name.startswith("--")), flags[0])
        return ScriptOption(
            parameter.arg if is_argument else main,
            default=literal(default),
            is_required=default is None,
            is_flag=is_bool and not is_argument,
            names=() if is_argument else tuple(flags),
            switch=switch,
            problem=problem,
            path=self._path_of(owner),
            line=parameter.lineno,
        )

    def _path_of(self, owner: ast.AST) -> Path:
        return next(file.path for file in self._source.files if owner in file.nodes)


def _literal_names(call: ast.Call) -> list[str]:
    return [name for name in map(literal, call.args) if isinstance(name, str)]


def _split_names(names: list[str]) -> list[str]:
    """The names of an option of click, also those of `--amp/--no-amp`."""
    return [part.strip() for name in names for part in name.split("/") if part.strip()]


def _switch_of_names(names: list[str], default: ast.expr | None) -> tuple[Switch | None, str]:
    """The switch of a flag of click or Typer, by its names such as `--amp/--no-amp`."""
    for name in names:
        on, slash, off = (part.strip() for part in name.partition("/"))
        if slash and on and off:
            return Switch((on,), (off,)), ""
    if default is not None and not is_literal(default):
        return None, "its default is known only when it runs"
    if literal(default):
        return None, "it is on by default, and no option turns it off"
    main = next((name for name in names if name.startswith("--")), names[0])
    return Switch((main,), ()), ""


def _is_bool(default: ast.expr | None) -> bool:
    return type(literal(default)) is bool


def _is_choice(kind: str) -> bool:
    return kind.startswith("Literal[") and kind.endswith("]")


def _words_of(file: SourceFile, kind: ast.expr | None, source: Source) -> tuple[str, str] | None:
    """The words that the type of an option reads as true and false; None if its source does not tell."""
    name = file.name(kind) if kind is not None else ""
    if name.endswith("strtobool") and name.rpartition(".")[2] not in source.functions:
        return "true", "false"
    if name == "json.loads":
        return "true", "false"
    if name in ("eval", "ast.literal_eval"):
        return "True", "False"
    body = kind if isinstance(kind, ast.Lambda) else source.functions.get(name.rpartition(".")[2])
    if body is None:
        return None
    calls = [method(node) for node in ast.walk(body) if isinstance(node, ast.Call)]
    if {"strtobool", "loads"} & set(calls):
        return "true", "false"
    if {"eval", "literal_eval"} & set(calls):
        return "True", "False"
    texts = set(file.texts(body))
    if {"true", "false"} & texts:
        return "true", "false"
    if {"True", "False"} & texts and not {"lower", "casefold", "upper"} & set(calls):
        return "True", "False"
    return None


# ---- whether a script refuses other options


_COMMANDS: Final = (".command", ".callback", ".group")  # the decorators of a command


def _is_strict(source: Source, library: Library) -> bool:
    """Whether a script certainly refuses an option that is not among those which its source declares."""
    if any(map(_changes_command_line, source.files)):
        return False
    if library == "argparse":
        return refuses_other_options(source)
    if library not in ("click", "typer"):
        return False
    for file in source.files:
        for call in file.calls:
            if file.name(call.func) == "click.option" and not _literal_names(call):
                return False
            if not {"context_settings", "cls", "params"}.isdisjoint(arguments(call)):
                return False
            if method(call) in ("add_command", "add_typer") and not _is_own(call, source):
                return False
        for node in file.nodes:
            decorators = getattr(node, "decorator_list", [])
            names = [file.name(each.func if isinstance(each, ast.Call) else each) for each in decorators]
            if any(name.endswith(_COMMANDS) for name in names):
                others = [name for name in names if not name.startswith("click.") and not name.endswith(_COMMANDS)]
                if not source.functions.keys() >= set(others):
                    return False
    return True


def _changes_command_line(file: SourceFile) -> bool:
    """Whether a file takes words out of `sys.argv`, or adds some."""
    for node in file.nodes:
        if isinstance(node, (ast.Name, ast.Attribute)) and file.name(node) == "sys.argv":
            around = file.parents[node]
            is_stored = any(isinstance(getattr(each, "ctx", None), (ast.Store, ast.Del)) for each in (node, around))
            if is_stored or isinstance(around, ast.Attribute):  # as in `sys.argv.remove`
                return True
    return False


def _is_own(call: ast.Call, source: Source) -> bool:
    """Whether the command that a call adds to others is declared in the source."""
    added = method_name(call.args[0]) if call.args else ""
    assigned = (target for file in source.files for node in file.nodes for target in getattr(node, "targets", []))
    return added in source.functions or added in {method_name(target) for target in assigned}


# ---- Hydra


def _hydra_options(folder: Path, main: dict[str, ast.expr]) -> Iterator[ScriptOption]:
    """The keys of a Hydra config and of the groups in its list of defaults."""
    configs = folder / str(literal(main.get("config_path")) or ".")
    name = str(literal(main.get("config_name")) or "config").removesuffix(".yaml")
    content = _read_mapping(configs / f"{name}.yaml")
    keys: dict[str, Any] = {}
    for entry in content.pop("defaults", []):
        for group, choice in entry.items() if isinstance(entry, dict) else ():
            keys |= dotted_items(_read_mapping(configs / str(group) / f"{choice}.yaml"), f"{group}.")
    content.pop("hydra", None)
    for key, value in (keys | dict(dotted_items(content))).items():
        yield ScriptOption(key, default=value, names=(key,))


def _read_mapping(path: Path) -> dict[str, Any]:
    content = read_file(path) if path.exists() else {}
    return dict(content) if isinstance(content, dict) else {}
