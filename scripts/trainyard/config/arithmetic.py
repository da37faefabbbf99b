"""Arithmetic on numbers and keys, as in `epochs * model_args.blocks`."""

import ast
import math
import operator
from collections.abc import Callable
from functools import cache
from typing import Any, Final

MOST_BITS: Final = 4096  # of an integer power, which else could take all memory


def _divide(left: float, right: float) -> float:
    return float(left) / float(right)


def _power(base: float, exponent: float) -> Any:
    is_large = isinstance(exponent, int) and exponent * math.log2(abs(base) + 1) > MOST_BITS
    return float(base) ** exponent if is_large else base**exponent


_OPERATORS: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: _power,
    ast.USub: operator.neg,
}


def evaluate(expression: str, value_of: Callable[[str], Any]) -> float:
    """The value of an expression with the values of its keys; an integer, of any size, if all of it is of integers.

    Raises:
        SyntaxError, TypeError, ValueError, ArithmeticError: it is not arithmetic, or the value of a key is no number.
    """
    value = _evaluate(_parse(expression), value_of)
    return value if isinstance(value, int) else float(value)


@cache
def _parse(expression: str) -> ast.expr:
    return ast.parse(expression.strip(), mode="eval").body


def _evaluate(node: ast.expr, value_of: Callable[[str], Any]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return +number
        case ast.Name() | ast.Attribute():
            key = ast.unparse(node)
            value = value_of(key)
            if not isinstance(value, (int, float)):
                raise TypeError(f"{key} is {value!r}, not a number")
            return +value
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(left, value_of), _evaluate(right, value_of))
        case ast.UnaryOp(op, operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(operand, value_of))
    raise TypeError(f"{ast.unparse(node)} is neither a number, a key nor one of + - * / // **")
