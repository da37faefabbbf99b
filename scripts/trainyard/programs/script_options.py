"""The options of a training script, read from its source without running it.

Read are argparse, click, Typer, absl, Hydra, and the classes or functions whose fields are options of tyro,
HfArgumentParser, jsonargparse and fire.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
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
from trainyard.programs.started_scripts import CommandContents, find_started
from trainyard.utils.errors import UserError

_OUTPUT: Final = re.compile(
    r"(out|output|save|log|results?)_?(dir|folder|path|file)|out|outf|output|save"
    r"|(exp|experiment|work|run|ckpt|checkpoints?)_?(dir|folder)|checkpoints_?path"  # --ckpt-path is read
)
_INPUT: Final = re.compile(
    r"((\w+_)?(data|dataset|input|root)|train|val|test)_?(dir|folder|path|root|file)|data|dataset|root"
)
_RESUME: Final = re.compile(
    r"resume(_from)?(_(checkpoint|ckpt|path|file|dir))?|(load_|from_)?(checkpoint|ckpt)(_path)?"
)
# How a program reads its command line, by the beginning of the name of what it calls for it.
Library = Literal["argparse", "click", "typer", "tyro", "words", "fire", "absl", "hydra", "shell", ""]
_LIBRARIES: Final[Mapping[str, Library]] = {
    "argparse.ArgumentParser": "argparse",
    "hydra.main": "hydra",
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
    "jsonargparse.": "words",
}
_FLAG_ACTIONS: Final = ("store_true", "store_false", "store_const", "append_const", "count")
_NEGATIVE: Final = re.compile(r"(?:no|not|do_not|dont|disable|without|skip)(?:_|$)")
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_SPLIT_WORDS: Final = ("tyro", "words", "fire", "absl")  # for which `--batch-size` and `--batch_size` are the same


@dataclass(frozen=True)
class ScriptOption:
    """An option of a script."""

    flag: str  # "--learning-rate"; of Hydra, a dotted key: "optimizer.lr"; of a positional argument, its name
    default: Any = None  # None if it has none, or one that only running the script would tell
    choices: tuple[Any, ...] = ()
    is_required: bool = False
    is_flag: bool = False  # it takes no value
    takes_one_word: bool = field(default=False, compare=False)  # certainly, and no list of several
    repeats: bool = field(default=False, compare=False)  # it is given once for each value of a list
    names: tuple[str, ...] = field(default=(), compare=False)  # all, such as -b and --batch-size
    switch: Switch | None = field(default=None, compare=False)  # the words for true and false, if they are certain
    problem: str = field(default="", compare=False)  # why they are not, or not the only ones
    where: str = field(default="", compare=False)  # it is declared: "train.py, line 7"

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
    library: Library = ""  # "" if it is unknown how it reads its command line
    source: Source = field(default=Source([]), compare=False, repr=False)
    program: tuple[str, ...] = ("python",)  # the words of its command line before its path,
    words: tuple[str, ...] = ()  # and after it, with their placeholders
    variables: Mapping[str, str] = field(default_factory=dict)  # that its command sets
    where: str = ""  # the line of the file of commands that starts it, as in "jobs.txt, line 3"
    settings: tuple[ScriptOption, ...] = ()  # what it reads as variables, or from a file, if not as options
    settings_words: tuple[str, ...] = ()  # of its command line, which name this file, as `--config conf.yaml`
    settings_file: str = ""

    @property
    def uses_hydra(self) -> bool:
        """Whether its options are the keys of a config of Hydra."""
        return self.library == "hydra"

    @cached_property
    def is_strict(self) -> bool:
        """Whether it certainly refuses options that are not among `options`."""
        return self.library == "argparse" and self.source.is_whole and refuses_other_options(self.source)

    @property
    def reads_pairs(self) -> bool:
        """Whether it takes settings such as `lr=0.1` by OmegaConf, which ignores `--lr 0.1`."""
        methods = {method(call) for file in self.source.files for call in file.calls}
        return not methods.isdisjoint(("from_cli", "from_dotlist"))

    @property
    def checkpoint(self) -> str:
        """The suffix of the first file in its source whose name is that of a checkpoint; `.pt` without one."""
        texts = (text for file in self.source.files for text in file.texts(file.tree))
        found = filter(None, (re.search(r"\.(pth\.tar|pth|pt|ckpt)$", text) for text in texts))
        return next((match[0] for match in found), ".pt")

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
            return Switch((), (), repeats=True) if option.repeats else option.switch
        return _switch_of_library(self.library, flag)


def _plain(name: str) -> str:
    return name.replace("-", "_")


def read_script(path: Path, roots: Sequence[Path] = ()) -> Script:
    """The options of a script, also those that it takes from modules in its folder or in `roots`.

    Raises:
        UserError: it cannot be read, or is not Python.
    """
    source = read_source(path, roots)
    library = _library(source)
    declared = _hydra_options(source) if library == "hydra" else _Options(source, library).read()
    options = dict[str, ScriptOption]()
    for option in declared:
        options.setdefault(option.flag, option)
    return Script(path, tuple(options.values()), library, source)


def read_started(started: CommandContents) -> list[Script]:
    """The scripts that a command starts, each parsed once in a process; without those that cannot be read."""
    scripts = list[Script]()
    for part in started.scripts:
        with suppress(UserError, OSError):  # it is no Python, which the interpreter will say, or was removed
            status = part.path.stat()
            script = _read_version(part.path, part.roots, (status.st_mtime_ns, status.st_size))
            scripts.append(replace(script, words=part.words, variables=part.variables, where=part.where))
    return scripts


@cache
def _read_version(path: Path, roots: tuple[Path, ...], version: tuple[int, int]) -> Script:
    return read_script(path, roots)


def find_switches(command: Command, start: Path) -> SwitchOf:
    """How the script that gets `{args}` of a command takes true, false and lists; `start` is the folder of the command.

    The script is read when such a value asks for it.
    """

    def switch_of(flag: str) -> Switch | None:
        scripts = read_started(find_started(command, start))
        readers = [script for script in scripts if ALL_ARGUMENTS & set(script.words)]
        return readers[0].switch(flag) if len(readers) == 1 else None

    return switch_of


def _library(source: Source) -> Library:
    """How a script reads its command line: what it calls itself comes before what its modules call."""
    for files in (source.files[:1], source.files[1:]):
        libraries = set[Library]()
        for file in files:
            used = [file.name(call.func) for call in file.calls]
            used += [file.name(each) for node in file.nodes for each in getattr(node, "decorator_list", [])]
            libraries |= {kind for name in used for start, kind in _LIBRARIES.items() if name.startswith(start)}
        if "hydra" in libraries:
            return "hydra"
        if libraries:
            return libraries.pop() if len(libraries) == 1 else ""
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
            return Switch((flag,), (f"--no{flag.removeprefix('--')}",))
    return None


# ---- options by library


class _Options:
    """The options that the calls, classes and functions of a source declare."""

    def __init__(self, source: Source, library: Library) -> None:
        self._source = source
        self._library = library
        calls = [call for file in source.files for call in file.calls if method(call) == "set_defaults"]
        self._changed = {keyword.arg for call in calls for keyword in call.keywords}  # None for any, by `**values`

    def read(self) -> Iterator[ScriptOption]:
        """The options; the first of each name counts."""
        for file in self._source.files:
            for call in file.calls:
                if file.name(call.func).startswith("absl.flags.DEFINE_"):
                    yield from self._of_absl(file, call)
            calls = [call for call in file.calls if _literal_names(call)]
            yield from self._of_argparse(file, [call for call in calls if method(call) == "add_argument"])
            for call in calls:
                if file.name(call.func) in ("click.option", "click.argument"):
                    yield self._of_click(file, call)
            for owner in self._owners(file):
                yield from self._of_class(owner, "") if isinstance(owner, ast.ClassDef) else self._of_function(owner)

    # ---- argparse

    def _of_argparse(self, file: SourceFile, calls: list[ast.Call]) -> Iterator[ScriptOption]:
        turned_off = {  # the option that turns another one off, by where the value is stored
            literal(arguments(call).get("dest")): _literal_names(call)[-1]
            for call in calls
            if literal(arguments(call).get("action")) == "store_false"
        }
        for call in calls:
            names = _literal_names(call)
            keywords = arguments(call)
            main = _longest(names)
            action = literal(keywords["action"]) if "action" in keywords else "store"
            is_pair = "action" in keywords and file.name(keywords["action"]).endswith("BooleanOptionalAction")
            is_flag = is_pair or action in _FLAG_ACTIONS
            switch = None
            problem = ""
            if is_pair:
                names += [f"--no-{name.removeprefix('--')}" for name in names if name.startswith("--")]
                switch = Switch((main,), (f"--no-{main.removeprefix('--')}",))
            elif is_flag:
                partner = turned_off.get(literal(keywords.get("dest")) or _plain(main.lstrip("-")))
                switch, problem = self._flag(main, keywords, partner if action != "store_false" else None)
            elif action == "store":
                switch, problem = self._value(file, main, keywords.get("type"))
            else:
                problem = "it is not certain how its action takes false"
            has_all = all(keyword.arg for keyword in call.keywords)  # without `**options`
            choices = literal(keywords.get("choices"))
            is_required = literal(keywords.get("required")) is True
            if not main.startswith("-"):
                is_required = {"nargs", "default"}.isdisjoint(keywords)
            yield ScriptOption(
                main,
                default=literal(keywords.get("default")),
                choices=tuple(choices) if isinstance(choices, (list, tuple)) else (),
                is_required=is_required,
                is_flag=is_flag,
                takes_one_word=action in ("store", "append") and "nargs" not in keywords and has_all,
                repeats=action == "append" and "nargs" not in keywords,
                names=tuple(names),
                switch=switch,
                problem=problem,
                where=f"{file.path}, line {call.lineno}",
            )

    def _flag(self, flag: str, keywords: Mapping[str, ast.expr], partner: str | None) -> tuple[Switch | None, str]:
        """The switch of an option without a value; `partner` is the option that turns it off."""
        default = keywords.get("default")
        dest = literal(keywords.get("dest")) or _plain(flag.lstrip("-"))
        is_true = literal(keywords["action"]) == "store_false"  # without the option
        if partner:
            return Switch((flag,), (partner,)), ""
        if is_true and dest == _plain(flag.lstrip("-")) and not _NEGATIVE.match(dest):
            return Switch((), (flag,)), ""  # as of `--cuda`, which turns CUDA off
        if not self._changed.isdisjoint((None, dest)) or (default is not None and not is_literal(default)):
            return None, "its default is known only when it runs"
        if default is not None and bool(literal(default)) != is_true:
            return None, "it is on by default, and no option turns it off"
        return Switch((flag,), ()), ""

    def _value(self, file: SourceFile, flag: str, kind: ast.expr | None) -> tuple[Switch | None, str]:
        """The switch of an option with a value, by the words that its type reads."""
        name = file.name(kind) if kind is not None else "str"
        if name == "bool" and self._library != "words":
            return None, "`type=bool` takes any text for true, also `false`"
        if name in ("str", "pathlib.Path"):
            return None, "its value is text, and the text `false` is true for Python"
        if name in ("int", "float"):
            return None, f"its value is a number (`type={name}`)"
        words = ("true", "false") if name == "bool" else _words_of(file, kind, self._source)
        if words is None:
            return None, "it is not certain which word its type reads as false"
        problem = "its type reads any value" if name.endswith(("eval", "loads")) else ""
        return Switch((flag, words[0]), (flag, words[1])), problem

    # ---- click

    def _of_click(self, file: SourceFile, call: ast.Call) -> ScriptOption:
        names = _literal_names(call)
        keywords = arguments(call)
        kind = keywords.get("type")
        flags = _split_names(names)
        default = literal(keywords.get("default"))
        main = _longest(flags)
        choices = literal(kind.args[0]) if isinstance(kind, ast.Call) and kind.args else ()  # click.Choice
        is_flag = literal(keywords.get("is_flag")) is True or flags != names
        switch = None
        problem = "its value is no boolean"
        if is_flag:
            switch, problem = _switch_of_names(names, keywords.get("default"))
        elif type(default) is bool or (kind is not None and file.name(kind) in ("bool", "click.BOOL")):
            switch = Switch((main, "true"), (main, "false"))
            problem = ""
        is_required = literal(keywords.get("required")) is True
        if method(call) == "argument":
            is_required = {"nargs", "default"}.isdisjoint(keywords)
        return ScriptOption(
            main,
            default=default,
            choices=tuple(choices) if isinstance(choices, (list, tuple)) else (),
            is_required=is_required,
            is_flag=is_flag,
            takes_one_word=not is_flag and "nargs" not in keywords and not isinstance(kind, ast.Tuple),
            repeats=literal(keywords.get("multiple")) is True and "nargs" not in keywords,
            names=tuple(flags),
            switch=switch,
            problem=problem,
            where=f"{file.path}, line {call.lineno}",
        )

    # ---- absl

    def _of_absl(self, file: SourceFile, call: ast.Call) -> Iterator[ScriptOption]:
        name = literal(call.args[0] if call.args else arguments(call).get("name"))
        if not isinstance(name, str):
            return
        flag = f"--{name}"
        is_bool = method(call) in ("DEFINE_bool", "DEFINE_boolean")
        default = call.args[1] if len(call.args) > 1 else arguments(call).get("default")
        yield ScriptOption(
            flag,
            default=literal(default),
            is_required=literal(arguments(call).get("required")) is True,
            is_flag=is_bool,
            takes_one_word=not is_bool,
            repeats=method(call).startswith("DEFINE_multi_"),
            names=(flag, *([f"--no{flag[2:]}"] if is_bool else [])),
            switch=_switch_of_library("absl", flag) if is_bool else None,
            problem="" if is_bool else "its value is no boolean",
            where=f"{file.path}, line {call.lineno}",
        )

    # ---- classes and functions whose fields or parameters are options

    def _owners(self, file: SourceFile) -> Iterator[ast.ClassDef | _Function]:
        """The classes and functions that a library makes options of."""
        if self._library not in ("typer", "tyro", "words", "fire"):
            return
        for call in file.calls:
            if any(map(file.name(call.func).startswith, _LIBRARIES)):
                values = (*call.args, *arguments(call).values())
                for name in (node.id for value in values for node in ast.walk(value) if isinstance(node, ast.Name)):
                    owner = self._source.classes.get(name) or self._source.functions.get(name)
                    if owner is not None:
                        yield owner
        for function in self._source.functions.values() if self._library == "typer" else ():
            names = [method_name(each.func) for each in function.decorator_list if isinstance(each, ast.Call)]
            if not {"command", "callback"}.isdisjoint(names):
                yield function

    def _of_class(
        self, owner: ast.ClassDef, prefix: str, outer: tuple[ast.ClassDef, ...] = ()
    ) -> Iterator[ScriptOption]:
        """The options of a class, which is a base or the type of a field of the `outer` ones."""
        outer = (*outer, owner)
        for base in map(method_name, owner.bases):
            inherited = self._source.classes.get(base)
            if inherited is not None and inherited not in outer:
                yield from self._of_class(inherited, prefix, outer)
        for node in owner.body:
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            default = node.value
            name = f"{prefix}{node.target.id}"
            nested = self._source.classes.get(ast.unparse(node.annotation).strip("'"))
            if nested is not None and self._library == "tyro":
                yield from self._of_class(nested, f"{name}.", outer) if nested not in outer else ()
                continue
            if isinstance(default, ast.Call) and method(default) == "field":
                default = arguments(default).get("default")
            yield self._option_of_field(name, node.annotation, default, node, owner)

    def _of_function(self, owner: _Function) -> Iterator[ScriptOption]:
        taken = [*owner.args.posonlyargs, *owner.args.args]
        missing: list[ast.expr | None] = [None] * (len(taken) - len(owner.args.defaults))
        defaults = [*missing, *owner.args.defaults, *owner.args.kw_defaults]
        for parameter, default in zip([*taken, *owner.args.kwonlyargs], defaults, strict=True):
            kind = parameter.annotation
            if kind is not None and method_name(kind) == "Context":
                continue
            if self._library == "typer":
                yield self._option_of_typer(parameter, default, owner)
            else:
                yield self._option_of_field(parameter.arg, kind, default, parameter, owner)

    def _option_of_field(
        self,
        name: str,
        kind: ast.expr | None,
        default: ast.expr | None,
        node: ast.AnnAssign | ast.arg,
        owner: ast.ClassDef | _Function,
    ) -> ScriptOption:
        flag = f"--{name.replace('_', '-')}" if self._library == "tyro" else f"--{name}"
        is_bool = (kind is not None and method_name(kind) == "bool") or type(literal(default)) is bool
        is_choice = isinstance(kind, ast.Subscript) and method_name(kind.value) == "Literal"
        choices = literal(kind.slice) if isinstance(kind, ast.Subscript) and is_choice else ()
        switch = _switch_of_library(self._library, flag) if is_bool else None
        is_flag = switch is not None and switch.on == (flag,)
        return ScriptOption(
            flag,
            default=literal(default),
            choices=choices if isinstance(choices, tuple) else (),
            is_required=default is None,
            is_flag=is_flag,
            takes_one_word=self._library == "fire",
            names=(flag, *(switch.off if switch and is_flag else ())),
            switch=switch,
            problem="" if is_bool else "its value is no boolean",
            where=self._place(owner, node),
        )

    def _option_of_typer(self, parameter: ast.arg, default: ast.expr | None, owner: _Function) -> ScriptOption:
        kind = parameter.annotation
        declared = None
        if isinstance(kind, ast.Subscript) and isinstance(kind.slice, ast.Tuple):  # Annotated
            kind, *others = kind.slice.elts
            declared = next((each for each in others if isinstance(each, ast.Call)), None)
        elif isinstance(default, ast.Call):  # typer.Option(0.1, "--lr0")
            declared = default
            default = declared.args[0] if declared.args else arguments(declared).get("default")
            default = None if isinstance(default, ast.Constant) and default.value is ... else default
        is_argument = default is None if declared is None else method(declared) == "Argument"
        is_bool = kind is not None and method_name(kind) == "bool"
        name = parameter.arg.replace("_", "-")
        names = [each for each in _literal_names(declared) if each.startswith("-")] if declared else []
        names = names or [f"--{name}/--no-{name}" if is_bool else f"--{name}"]
        switch, problem = _switch_of_names(names, default) if is_bool else (None, "its value is no boolean")
        flags = _split_names(names)
        return ScriptOption(
            parameter.arg if is_argument else _longest(flags),
            default=literal(default),
            is_required=default is None,
            is_flag=is_bool and not is_argument,
            takes_one_word=not (is_bool or is_argument or (kind is not None and "tuple" in ast.unparse(kind).lower())),
            repeats=isinstance(kind, ast.Subscript) and method_name(kind.value) in ("list", "List"),
            names=() if is_argument else tuple(flags),
            switch=switch,
            problem=problem,
            where=self._place(owner, parameter),
        )

    def _place(self, owner: ast.ClassDef | _Function, node: ast.AnnAssign | ast.arg) -> str:
        path = next(file.path for file in self._source.files if owner in file.nodes)
        return f"{path}, line {node.lineno}"


def _literal_names(call: ast.Call) -> list[str]:
    return [name for name in map(literal, call.args) if isinstance(name, str)]


def _longest(names: list[str]) -> str:
    """The name of an option by which it is called here: `--lr` of `-l` and `--lr`."""
    return next((name for name in names if name.startswith("--")), names[0])


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
    return Switch((_longest(names),), ()), ""


def _words_of(file: SourceFile, kind: ast.expr | None, source: Source) -> tuple[str, str] | None:
    """The words that the type of an option reads as true and false; None if its source does not tell."""
    name = method_name(kind) if kind is not None else ""
    body = kind if isinstance(kind, ast.Lambda) else source.functions.get(name)
    called = {name}
    texts = set[str]()
    if body is not None:
        called = {method(node) for node in ast.walk(body) if isinstance(node, ast.Call)}
        texts = set(file.texts(body))
    if called & {"strtobool", "loads"} or texts & {"true", "false"}:
        return "true", "false"
    if called & {"eval", "literal_eval"}:
        return "True", "False"
    is_case_kept = called.isdisjoint(("lower", "casefold", "upper"))
    return ("True", "False") if texts & {"True", "False"} and is_case_kept else None


# ---- Hydra


def _hydra_options(source: Source) -> Iterator[ScriptOption]:
    """The keys of a Hydra config and of the groups in its list of defaults."""
    for file in source.files:
        for call in file.calls:
            if file.name(call.func) == "hydra.main":
                yield from _hydra_keys(file.path.parent, arguments(call))


def _hydra_keys(folder: Path, main: dict[str, ast.expr]) -> Iterator[ScriptOption]:
    configs = folder / str(literal(main.get("config_path")) or ".")
    name = str(literal(main.get("config_name")) or "config").removesuffix(".yaml")
    content = _read_mapping(configs / f"{name}.yaml")
    keys: dict[str, Any] = {}
    for entry in content.pop("defaults", []):
        for group, choice in entry.items() if isinstance(entry, dict) else ():
            keys |= dotted_items(_read_mapping(configs / str(group) / f"{choice}.yaml"), f"{group}.")
    content.pop("hydra", None)
    for key, value in (keys | dict(dotted_items(content))).items():
        yield ScriptOption(key, default=value, names=(key,), where="the config of Hydra")


def _read_mapping(path: Path) -> dict[str, Any]:
    content = read_file(path) if path.exists() else {}
    return dict(content) if isinstance(content, dict) else {}
