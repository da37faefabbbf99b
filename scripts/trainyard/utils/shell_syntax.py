"""Reading a command line as a POSIX shell does: where placeholders stand, and whether it is one simple command."""

import re
from dataclasses import dataclass, field
from typing import Final

# Where a placeholder may stand. A value is quoted for a plain word; anywhere else its quotes would be wrong.
PLAIN: Final = ""
SINGLE, DOUBLE, BACKTICKS = "single quotes", "double quotes", "backticks"
ARITHMETIC, COMMENT, DOCUMENT, ESCAPED = "$((...))", "a comment", "a here-document", "a backslash"
_DOCUMENT_BEGINS: Final = re.compile(r"""<<(-?)[ \t]*((?:'[^']*'|"[^"]*"|\\.|[^\s;&|<>()'"\\`$])+)""")


@dataclass
class Reading:
    """What was found in a text, from left to right."""

    placeholders: list[tuple[str, str]] = field(default_factory=list)  # name and where it stands
    operators: list[str] = field(default_factory=list)  # what makes it more than one simple command


def read(text: str, pattern: re.Pattern[str]) -> Reading:
    """Read a text whose placeholders match a pattern, its first group their name."""
    reader = _Reader(text.strip(), pattern)
    reader.commands(end="")
    return reader.reading


class _Reader:
    """Goes through a text once; each method begins where something opens, and ends after it has closed."""

    def __init__(self, text: str, pattern: re.Pattern[str]) -> None:
        self.reading = Reading()
        self._text, self._pattern, self._at = text, pattern, 0
        self._escaped = -1  # the end of the last character after a backslash
        self._depth = 0  # of $(...), (...) and ${...}
        self._documents: list[tuple[str, bool]] = []  # end marks of here-documents that begin on the next line

    def commands(self, *, end: str) -> None:
        """What is not quoted."""
        while self._at < len(self._text) and not (end and self._is_at(end)):
            character = self._text[self._at]
            if self._placeholder(PLAIN) or self._expansion(PLAIN):
                continue
            if character == "\\":
                self._escape(ESCAPED)
            elif character == "'":
                self._quoted("'", SINGLE, expands=False)
            elif character == '"':
                self._quoted('"', DOUBLE)
            elif end == "}":  # of ${...}: a word, in which nothing else has a meaning
                self._at += 1
            elif character == "#" and self._begins_a_word():
                self._comment()
            else:
                self._unquoted(character)
        self._at += len(end)

    def _unquoted(self, character: str) -> None:
        if begins := _DOCUMENT_BEGINS.match(self._text, self._at):
            self._documents.append((re.sub(r"[\\'\"]", "", begins[2]), bool(begins[1])))
            self._note(begins.end(), DOCUMENT)
        elif self._is_at("<<<"):
            self._at += 3
        elif character == "(":
            self._operator("(")
            self._inner(1, ")")
        else:
            redirects = character in "&|" and self._text[self._at - 1 : self._at] in ("<", ">")  # as in 2>&1
            if character in ";|&)\n" and not redirects:
                self._operator("a line break" if character == "\n" else character)
            self._at += 1
            if character == "\n":
                self._read_documents()

    def _expansion(self, where: str) -> bool:
        """What begins with `$` or is in backticks; its commands are read as they are outside of quotes."""
        if self._is_at("`"):
            self._quoted("`", BACKTICKS, expands=False)
        elif self._is_at("$$"):  # the number of the process
            self._at += 2
        elif self._is_at("$(("):
            self._at += 2
            self._quoted("))", ARITHMETIC)
        elif self._is_at("$("):
            self._inner(2, ")")
        elif self._is_at("${") and where == PLAIN:
            self._inner(2, "}")
        elif self._is_at("${"):
            self._at += 1
            self._quoted("}", where)
        else:
            return False
        return True

    def _inner(self, width: int, end: str) -> None:
        self._at += width
        self._depth += 1
        self.commands(end=end)
        self._depth -= 1

    def _quoted(self, end: str, where: str, *, expands: bool = True) -> None:
        """Up to its end, from one character before what it holds."""
        self._at += 1
        while self._at < len(self._text) and not self._is_at(end):
            if self._placeholder(where) or (expands and self._expansion(where)):
                continue
            if self._text[self._at] == "\\" and where != SINGLE:
                self._escape(where)
            elif self._text[self._at] == "(" and where == ARITHMETIC:
                self._quoted(")", where)
            else:
                self._at += 1
        self._at += len(end)

    def _escape(self, where: str) -> None:
        self._at += 1
        if not self._placeholder(where):
            self._at += 1
            self._escaped = self._at
            if self._at > len(self._text):
                self._operator("a backslash")

    def _begins_a_word(self) -> bool:
        return self._at == 0 or (self._text[self._at - 1] in " \t\n;|&()<>" and self._at != self._escaped)

    def _comment(self) -> None:
        self._operator("a comment")
        end = self._text.find("\n", self._at)
        self._note(end if end >= 0 else len(self._text), COMMENT)

    def _read_documents(self) -> None:
        while self._documents:
            mark, indented = self._documents.pop(0)
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                end = end if end >= 0 else len(self._text)
                line = self._text[self._at : end]
                self._note(end, DOCUMENT)
                self._at += 1
                if (line.lstrip("\t") if indented else line) == mark:
                    break

    def _note(self, end: int, where: str) -> None:
        """All placeholders up to an index."""
        found = self._pattern.finditer(self._text, self._at, end)
        self.reading.placeholders += [(each[1], where) for each in found]
        self._at = end

    def _placeholder(self, where: str) -> bool:
        found = self._pattern.match(self._text, self._at)
        if found:
            self.reading.placeholders.append((found[1], where))
            self._at = found.end()
        return found is not None

    def _operator(self, what: str) -> None:
        if self._depth == 0:
            self.reading.operators.append(what)

    def _is_at(self, what: str) -> bool:
        return self._text.startswith(what, self._at)
