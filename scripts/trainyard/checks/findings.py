"""What the checks of a site have found."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from trainyard.utils.errors import UserError

Verdict = Literal["ok", "warns", "fails", "unknown"]


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    verdict: Verdict
    message: str
    remedy: str = ""  # for a failure or warning, what to do; for an unknown, how to find out


def catch_errors(name: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check; an exception becomes one more finding."""
    try:
        yield from check()
    except UserError as error:
        remedy = "run this on a login node of the cluster, with Slurm's programs on PATH"
        yield Finding(name, "fails", str(error), remedy)
    except Exception as error:
        remedy = "this is an error in the doctor, not in your site: please report it"
        yield Finding(name, "unknown", f"the check itself failed: {type(error).__name__}: {error}", remedy)
