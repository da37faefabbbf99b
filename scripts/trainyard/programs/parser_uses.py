"""What a script that uses argparse certainly does: refuse options that its source does not declare, or not read one.

It does if its source tells of every parser, and of every use of one, what it does.
"""

import ast
from collections.abc import Set
from typing import Final

from trainyard.programs.script_source import Source, SourceFile, arguments, literal, method

_MAKERS: Final = (
    "ArgumentParser",
    "add_argument_group",
    "add_mutually_exclusive_group",
    "add_subparsers",
    "add_parser",
)
_METHODS: Final = (*_MAKERS, "add_argument", "parse_args", "set_defaults", "error", "print_help")
_COMMAND_LINE: Final = ("None", "sys.argv[1:]", "argv", "args")  # arguments of `parse_args`


def refuses_other_options(source: Source) -> bool:
    """Whether a script certainly refuses an option that no call of `add_argument` in its source declares."""
    nodes = [(file, node) for file in source.files for node in file.nodes]
    assigned = ((file, node) for file, node in nodes if isinstance(node, ast.Assign) and _makes_parser(node.value))
    parsers = {file.name(target) for file, node in assigned for target in node.targets}
    if not all(_is_understood(file, node, parsers) for file, node in nodes):
        return False
    calls = [(file, call) for file in source.files for call in file.calls]
    is_parsed = any(method(call) == "parse_args" for _, call in calls)
    return is_parsed and all(_is_plain(file, call, parsers) for file, call in calls)


def leaves_to_wandb(source: Source, flag: str) -> bool:
    """Whether a script certainly gives the value of an option to nothing but `wandb.config`."""
    calls = [(file, call) for file in source.files for call in file.calls]
    declared = [call for _, call in calls if flag in map(literal, call.args)]
    names = {flag.lstrip("-").replace("-", "_"), *(literal(arguments(call).get("dest")) for call in declared)}
    uses = [file.parents[call] for file, call in calls if method(call) in ("parse_args", "parse_known_args")]
    parsed = {ast.unparse(use.targets[0]) if isinstance(use, ast.Assign) else "" for use in uses}
    if not (parsed and source.is_whole and all(map(str.isidentifier, parsed))):
        return False
    for file in source.files:
        for node in file.nodes:
            is_read = isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
            if not is_read or file.name(node).rpartition(".")[2] not in parsed:
                continue
            around = file.parents[node]
            is_other = isinstance(around, ast.Attribute) and around.attr not in names and around.attr[0] != "_"
            takers = {file.name(each.func) for each in file.ancestors(node) if isinstance(each, ast.Call)}
            if not is_other and takers.isdisjoint(("wandb.init", "wandb.config.update")):
                return False
    return True


def _makes_parser(node: ast.AST) -> bool:
    """Whether an expression makes a parser, or a group or the subparsers of one."""
    return isinstance(node, ast.Call) and method(node) in _MAKERS


def _is_parser(file: SourceFile, node: ast.AST, parsers: Set[str]) -> bool:
    is_read = isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
    return _makes_parser(node) or (is_read and file.name(node) in parsers)


def _is_understood(file: SourceFile, node: ast.AST, parsers: Set[str]) -> bool:
    """Whether a parser is only called by its methods, and the command line only read."""
    if isinstance(node, (ast.Name, ast.Attribute)) and file.name(node) == "sys.argv":
        around = file.parents[node]
        is_part = isinstance(around, ast.Subscript) and isinstance(around.ctx, ast.Load)
        return isinstance(node.ctx, ast.Load) and (is_part or isinstance(around, (ast.Compare, ast.Call)))
    if not _is_parser(file, node, parsers):
        return True
    around = file.parents[node]
    if isinstance(around, ast.Attribute):
        call = file.parents[around]
        return around.attr in _METHODS and isinstance(call, ast.Call) and call.func is around
    return isinstance(around, ast.Expr) or (isinstance(around, ast.Assign) and _makes_parser(node))


def _is_plain(file: SourceFile, call: ast.Call, parsers: Set[str]) -> bool:
    """Whether a call shows no way in which a parser has options that the source does not."""
    keywords = arguments(call)
    match method(call):
        case "parse_known_args" | "exec":
            return False
        case "ArgumentParser":
            is_own = file.name(call.func) == "argparse.ArgumentParser"
            return is_own and {"parents", "prefix_chars"}.isdisjoint(keywords)
        case "add_argument":
            has_names = all(isinstance(literal(argument), str) for argument in call.args) and bool(call.args)
            nargs = ast.unparse(keywords["nargs"]) if "nargs" in keywords else ""
            has_options = all(keyword.arg for keyword in call.keywords)  # without `**options`
            return has_names and has_options and not nargs.endswith(("REMAINDER", "'...'"))
        case "parse_args":
            is_known = isinstance(call.func, ast.Attribute) and _is_parser(file, call.func.value, parsers)
            words = [ast.unparse(each) for each in (*call.args, *keywords.values())]
            return is_known and all(each in _COMMAND_LINE for each in words)
    return True
