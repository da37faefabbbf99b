"""Parsing a command line as bash does: the context of each placeholder, and the operators it contains.

`shlex` splits a line into words, but does not report which quotes, substitution or here-document a character is in.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

# The context of a placeholder. Its quoted value is one word in the context UNQUOTED only.
UNQUOTED: Final = ""
SINGLE_QUOTES = "single quotes"
DOUBLE_QUOTES = "double quotes"
BACKTICKS = "backticks"
ARITHMETIC = "$((...))"
COMMENT = "a comment"
HERE_DOCUMENT = "a here-document"
ESCAPED = "a backslash"
ANSI_QUOTES = "$'...'"
_OPTION_LINE: Final = re.compile(r"[ \t]*(--?[A-Za-z][^\s)]*)(?=\s|$)")  # but no pattern of `case`, as in `-v)`
_HERE_DOCUMENT: Final = re.compile(r"""<<(-?)[ \t]*((?:'[^']*'|"[^"]*"|\\.|[^\s;&|<>()'"\\`$])+)""")

SHELLS: Final = ("sh", "bash", "dash", "ksh", "zsh")
CODE_OPTION: Final = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*")  # of a shell: a script follows its options
_VALUE_OPTION: Final = re.compile(r"[-+][a-zA-Z]*[oO][a-zA-Z]*|--(rc|init-)file")  # such as -euo pipefail


def shell_options(words: Sequence[str]) -> list[str]:
    """The options of a shell, before its script or the name of one: `pipefail` of `-o pipefail` is among them."""
    options = list[str]()
    for word in words:
        if not word.startswith(("-", "+")) and not (options and _VALUE_OPTION.fullmatch(options[-1])):
            break
        options.append(word)
    return options


@dataclass
class CommandLine:
    """The placeholders and operators of a command line, from left to right."""

    placeholders: list[tuple[str, str]] = field(default_factory=list)  # name and context
    operators: list[str] = field(default_factory=list)  # empty if the line is one simple command
    options: list[str] = field(default_factory=list)  # those that begin a line, and so a command


def parse_command(text: str, placeholder: re.Pattern[str]) -> CommandLine:
    """Parse a command line; the first group of the pattern `placeholder` is a placeholder's name."""
    parser = _Parser(text.strip(), placeholder)
    parser.parse_commands(end="")
    return parser.found


class _Parser:
    """A single-pass parser. Each method starts at the opening of its construct and stops after the closing."""

    def __init__(self, text: str, placeholder: re.Pattern[str]) -> None:
        self.found = CommandLine()
        self._text = text
        self._pattern = placeholder
        self._at = 0
        self._escape_end = -1  # index behind the last escaped character
        self._depth = 0  # of nested $(...), (...) and ${...}
        self._here_documents: list[tuple[str, bool]] = []  # delimiters of those that start on the next line; if <<-

    def parse_commands(self, *, end: str) -> None:
        """Parse text outside of quotes, up to `end`."""
        while self._at < len(self._text) and not (end and self._is_at(end)):
            character = self._text[self._at]
            if self._parse_placeholder(UNQUOTED) or self._parse_expansion(UNQUOTED):
                continue
            if character == "\\":
                self._parse_escape(ESCAPED)
            elif character == "'":
                self._parse_quoted("'", SINGLE_QUOTES, expands=False)
            elif character == '"':
                self._parse_quoted('"', DOUBLE_QUOTES)
            elif end == "}":  # the word of ${...}, in which no other character is special
                self._at += 1
            elif character == "#" and self._is_word_start():
                self._add_operator("a comment")
                self._add_placeholders(self._line_end(), COMMENT)
            else:
                self._parse_unquoted(character)
        self._at += len(end)

    def _parse_unquoted(self, character: str) -> None:
        if opening := _HERE_DOCUMENT.match(self._text, self._at):
            self._here_documents.append((re.sub(r"[\\'\"]", "", opening[2]), bool(opening[1])))
            self._add_placeholders(opening.end(), HERE_DOCUMENT)
        elif self._is_at("<<<"):
            self._at += 3
        elif character == "(":
            self._add_operator("(")
            if self._is_at("(("):
                self._at += 1
                self._parse_quoted("))", ARITHMETIC)
            else:
                self._parse_nested(1, ")")
        else:
            redirects = character in "&|" and self._text[self._at - 1 : self._at] in ("<", ">")  # as in 2>&1
            redirects = redirects or self._is_at("&>")
            if character in ";|&)\n" and not redirects:
                double = next((each for each in ("&&", "||") if self._is_at(each)), character)
                self._add_operator("a line break" if character == "\n" else double)
            self._at += 1
            if character == "\n":
                self._parse_here_documents()
                if option := _OPTION_LINE.match(self._text, self._at):
                    self.found.options.append(option[1])

    def _parse_expansion(self, context: str) -> bool:
        """Parse what starts with `$` or a backtick; False if there is neither. Nested commands are unquoted again."""
        if self._is_at("`"):
            self._parse_quoted("`", BACKTICKS, expands=False)
        elif self._is_at("$$"):  # the process ID
            self._at += 2
        elif self._is_at("$(("):
            self._at += 2
            self._parse_quoted("))", ARITHMETIC)
        elif self._is_at("$["):
            self._at += 1
            self._parse_quoted("]", ARITHMETIC)
        elif self._is_at("$'") and context == UNQUOTED:
            self._at += 1
            self._parse_quoted("'", ANSI_QUOTES, expands=False)
        elif self._is_at("$("):
            self._parse_nested(2, ")")
        elif self._is_at("${") and context == UNQUOTED:
            self._parse_nested(2, "}")
        elif self._is_at("${"):
            self._at += 1
            self._parse_quoted("}", context)
        else:
            return False
        return True

    def _parse_nested(self, width: int, end: str) -> None:
        self._at += width
        self._depth += 1
        self.parse_commands(end=end)
        self._depth -= 1

    def _parse_quoted(self, end: str, context: str, *, expands: bool = True) -> None:
        """Parse from the last character of the opening to `end`."""
        self._at += 1
        while self._at < len(self._text) and not self._is_at(end):
            if self._parse_placeholder(context) or (expands and self._parse_expansion(context)):
                continue
            if self._text[self._at] == "\\" and context != SINGLE_QUOTES:
                self._parse_escape(context)
            elif self._text[self._at] == "(" and context == ARITHMETIC:
                self._parse_quoted(")", context)
            else:
                self._at += 1
        self._at += len(end)

    def _parse_escape(self, context: str) -> None:
        self._at += 1
        if not self._parse_placeholder(context):
            self._at += 1
            self._escape_end = self._at
            if self._at > len(self._text):
                self._add_operator("a backslash")

    def _is_word_start(self) -> bool:
        return self._at == 0 or (self._text[self._at - 1] in " \t\n;|&()<>" and self._at != self._escape_end)

    def _parse_here_documents(self) -> None:
        while self._here_documents:
            delimiter, strips_tabs = self._here_documents.pop(0)
            while self._at < len(self._text):
                line = self._text[self._at : self._line_end()]
                self._add_placeholders(self._line_end(), HERE_DOCUMENT)
                self._at += 1
                if (line.lstrip("\t") if strips_tabs else line) == delimiter:
                    break

    def _line_end(self) -> int:
        end = self._text.find("\n", self._at)
        return end if end >= 0 else len(self._text)

    def _parse_placeholder(self, context: str) -> bool:
        match = self._pattern.match(self._text, self._at)
        if match:
            self.found.placeholders.append((match[1], context))
            self._at = match.end()
        return match is not None

    def _add_placeholders(self, end: int, context: str) -> None:
        """Add all placeholders up to the index `end`, and continue there."""
        self.found.placeholders += [(each[1], context) for each in self._pattern.finditer(self._text, self._at, end)]
        self._at = end

    def _add_operator(self, operator: str) -> None:
        if self._depth == 0:
            self.found.operators.append(operator)

    def _is_at(self, text: str) -> bool:
        return self._text.startswith(text, self._at)
