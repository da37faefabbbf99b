"""Whether a script that uses argparse certainly refuses every option that its source does not declare.

It does if its source tells of every parser, and of every use of one, what it does.
"""

import ast
from typing import Final

from trainyard.programs.script_source import Source, SourceFile, arguments, literal, method, method_name

_MAKERS: Final = (
    "ArgumentParser",
    "add_argument_group",
    "add_mutually_exclusive_group",
    "add_subparsers",
    "add_parser",
)
_METHODS: Final = (
    *_MAKERS,
    "add_argument",
    "parse_args",
    "parse_intermixed_args",
    "set_defaults",
    "get_default",
    "error",
    "exit",
    "print_help",
    "print_usage",
    "format_help",
    "format_usage",
)
_PASSED_ON: Final = ("argv", "args", "arguments", "argument_list", "input_args")  # parameters with the command line


def refuses_other_options(source: Source) -> bool:
    """Whether a script certainly refuses an option that no call of `add_argument` in its source declares."""
    parsers, is_parsed = _Parsers(source), False
    if not parsers.follow():
        return False
    for file in source.files:
        for node in file.nodes:
            if isinstance(node, ast.ClassDef) and any(method_name(base) == "ArgumentParser" for base in node.bases):
                return False
        for call in file.calls:
            if _takes_more(file, call):
                return False
            if method(call) in ("parse_args", "parse_intermixed_args") and isinstance(call.func, ast.Attribute):
                is_parsed = True
                parsed = (*call.args, *arguments(call).values())
                if not parsers.has(call.func.value) or not all(_is_command_line(file, words) for words in parsed):
                    return False
    return is_parsed


class _Parsers:
    """The expressions of a source that are a parser, or a group or the subparsers of one."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._names = set[str]()  # of variables; of attributes, with a dot before them
        self._makers = set(_MAKERS)  # the functions that return one
        self._own_modules = {part for file in source.files for part in file.path.with_suffix("").parts}

    def has(self, node: ast.AST) -> bool:
        """Whether an expression is one of them."""
        if isinstance(node, ast.Call):
            return method(node) in self._makers
        is_read = isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
        return is_read and _key(node) in self._names

    def follow(self) -> bool:
        """Find them all, and tell whether each use of them is understood."""
        count = -1
        are_understood = True
        while count < len(self._names) + len(self._makers):
            count = len(self._names) + len(self._makers)
            uses = [(file, node) for file in self._source.files for node in file.nodes if self.has(node)]
            understood = [self._is_understood(file, node) for file, node in uses]  # each, for the names
            are_understood = all(understood)
        return are_understood

    def _is_understood(self, file: SourceFile, node: ast.AST) -> bool:
        """Whether it is clear what becomes of a parser; notes the names that it gets."""
        around = file.parents[node]
        match around:
            case ast.Attribute(attr=name, ctx=ast.Load()):
                call = file.parents[around]
                return isinstance(call, ast.Call) and call.func is around and name in _METHODS
            case ast.Assign(targets=targets):
                self._names |= {_key(target) for target in targets}
                return all(isinstance(target, (ast.Name, ast.Attribute)) for target in targets)
            case ast.AnnAssign(target=target):
                self._names.add(_key(target))
                return True
            case ast.Return():
                functions = (each for each in file.ancestors(node) if isinstance(each, ast.FunctionDef))
                self._makers.add(next(functions).name)
                return True
            case ast.Call():
                return self._is_passed(file, around, node)
            case ast.keyword():
                call = file.parents[around]
                return isinstance(call, ast.Call) and self._is_passed(file, call, node)
        return isinstance(around, (ast.Expr, ast.Compare, ast.Attribute))  # which may set `required`

    def _is_passed(self, file: SourceFile, call: ast.Call, node: ast.AST) -> bool:
        """Whether a function of the source gets a parser as an argument; notes the name of its parameter."""
        function = self._source.functions.get(method(call))
        module = file.name(call.func).partition(".")[0]
        is_foreign = module in self._source.imports and module not in self._own_modules
        if function is None or is_foreign:
            return False
        taken = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        taken = taken[1:] if taken[:1] in (["self"], ["cls"]) else taken
        named = {*taken, *(each.arg for each in function.args.kwonlyargs)}
        if node in call.args and not any(isinstance(each, ast.Starred) for each in call.args):
            parameters = taken[call.args.index(node) :][:1]
        else:
            parameters = [name for name, value in arguments(call).items() if value is node and name in named]
        self._names.update(parameters)
        return bool(parameters)


def _key(node: ast.AST) -> str:
    return f".{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _takes_more(file: SourceFile, call: ast.Call) -> bool:
    """Whether a call shows that a parser has options that the source does not, or takes any."""
    called = method(call)
    if called in ("parse_known_args", "parse_known_intermixed_args", "exec"):
        return True
    if called == "ArgumentParser":
        is_plain = file.name(call.func) == "argparse.ArgumentParser"
        return not is_plain or not {"parents", "prefix_chars"}.isdisjoint(arguments(call))
    return called == "add_argument" and (not _is_plain(call) or _nargs(file, call) in ("...", "REMAINDER"))


def _is_plain(call: ast.Call) -> bool:
    """Whether the names of an argument are all in the call, without `*names` or `**options`."""
    has_all = all(isinstance(literal(argument), str) for argument in call.args) and bool(call.args)
    return has_all and all(keyword.arg for keyword in call.keywords)


def _nargs(file: SourceFile, call: ast.Call) -> str:
    """How many words an argument takes; `REMAINDER` takes all, also options."""
    nargs = arguments(call).get("nargs")
    return str(literal(nargs) or file.name(nargs).rpartition(".")[2]) if nargs is not None else ""


def _is_command_line(file: SourceFile, argument: ast.expr) -> bool:
    if isinstance(argument, ast.Subscript):
        return file.name(argument.value) == "sys.argv"
    is_none = isinstance(argument, ast.Constant) and argument.value is None
    return is_none or (isinstance(argument, ast.Name) and argument.id in _PASSED_ON)
