"""What checks find, and how it is shown: as lines on the terminal, or as the warnings and the error of a run."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from trainyard.utils.errors import UserError
from trainyard.utils.text import count_of

if TYPE_CHECKING:
    from rich.console import Console

Verdict = Literal["ok", "warns", "fails", "unknown"]
SIGNS: Final[dict[Verdict, str]] = {
    "ok": "[green]ok[/]",
    "warns": "[yellow]warning[/]",
    "fails": "[bold red]FAILS[/]",
    "unknown": "[yellow]unknown[/]",
}
LOG_WIDTH: Final = 100


@dataclass(frozen=True)
class Finding:
    """The result of one check. A check is a function that yields findings."""

    name: str  # of the check, or the place in the config
    verdict: Verdict
    message: str
    remedy: str = ""  # for a failure or warning, what to do; for an unknown, how to find out

    def __str__(self) -> str:
        """One line for a log or an error."""
        return f"{self.name}: {self.text}"

    @property
    def text(self) -> str:
        """The message, and the remedy."""
        return f"{self.message}: {self.remedy}" if self.remedy else self.message


def catch_errors(name: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check of a site; an exception becomes one more finding."""
    try:
        yield from check()
    except UserError as error:
        remedy = "run this on a login node of the cluster, with Slurm's programs on PATH"
        yield Finding(name, "fails", str(error), remedy)
    except Exception as error:
        remedy = "this is an error in the doctor, not in your site: please report it"
        yield Finding(name, "unknown", f"the check itself failed: {type(error).__name__}: {error}", remedy)


def refuse_mistakes(findings: Iterable[Finding], notify: Callable[[str], None]) -> None:
    """Pass on warnings, and decisions that a user may change; raise a UserError that lists all failures."""
    known_findings = list(findings)
    for each in known_findings:
        if each.verdict == "warns" or (each.verdict == "ok" and each.remedy):
            notify(str(each))
    if wrong := [str(each) for each in known_findings if each.verdict == "fails"]:
        count = count_of(len(wrong), "mistake")
        raise UserError("\n  ".join([f"{count}, found before anything was submitted:", *dict.fromkeys(wrong)]))


def log_console() -> "Console":
    """A console as wide as the terminal, or in a log of a fixed width."""
    from rich.console import Console  # takes a tenth of a second to import

    return Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)


def print_findings(
    findings: Iterable[Finding], console: "Console", *, name_width: int, notes: bool = False, quiet: bool = False
) -> int:
    """Print each finding as soon as it is known, then how many fail; returns the exit code, 1 if one does.

    The remedy is below a finding, unless the one before has the same. With `notes`, also of passed checks; with
    `quiet`, only what fails is printed.
    """
    from rich.markup import escape
    from rich.table import Table

    failed = 0
    unknown = 0
    last_remedy = ""
    for finding in findings:
        failed = failed + (finding.verdict == "fails")
        unknown = unknown + (finding.verdict == "unknown")
        if quiet and finding.verdict != "fails":
            continue
        row = Table.grid(padding=(0, 2))
        for width in (name_width, 7, None):
            row.add_column(width=width, overflow="fold")
        row.add_row(escape(finding.name), SIGNS[finding.verdict], escape(finding.message))
        if finding.remedy not in ("", last_remedy) and (notes or finding.verdict != "ok"):
            row.add_row("", "", f"[italic]-> {escape(finding.remedy)}[/]")
        console.print(row)
        last_remedy = finding.remedy
    if failed or not quiet:
        ending = "Nothing fails"
        if failed:
            ending = f"{failed} of these fail" if failed > 1 else "1 of these fails"
        not_known = f"; {unknown} cannot be known yet" if unknown else ""
        console.print(f"\n[bold]{ending}[/]{not_known}.")
    return int(failed > 0)
