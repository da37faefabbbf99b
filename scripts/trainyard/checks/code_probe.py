"""Try a user's code and trainings before anything is submitted: a program of its own, for an import may do anything.

It reads a request as JSON from stdin:

    {"imports": [[place, path, role, arguments]], "trainings": [[place, spec, images]]}

`arguments` are what the later call passes, `{"args": [...], "kwargs": {...}}`, or null; `images` is a `KnownImages`. It
writes one line of JSON to stdout, `{"findings": [[place, verdict, message]], "files": [path]}`, with the verdicts
"ok", "fails" and "unknown", and the files of the user's code.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainyard.config.train import Train
from trainyard.data.known_images import KnownImages
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import check_call, import_object, is_own_file

Finding = tuple[str, str, str]  # place, verdict, message
SEARCHED: Final = " (searched: the working directory and PYTHONPATH)"
DRIVERS: Final = ("/dev/nvidiactl", "/dev/kfd")  # of NVIDIA and AMD
_OF_GPUS: Final = re.compile(r"\b(lib)?cuda|nvidia|\bhip\b", re.IGNORECASE)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The findings of a request, and the files of the user's code that were imported."""
    failed = set[str]()
    findings = list(_imports(request["imports"], failed))
    if request["trainings"]:
        from trainyard.checks.model_probe import rehearse_all  # torch takes seconds to import

        given = [(place, Train.model_validate(spec), images) for place, spec, images in request["trainings"]]
        can_be_tried = [each for each in given if not failed & {path for path, _ in each[1].import_paths.values()}]
        findings += rehearse_all((place, spec, KnownImages(**images)) for place, spec, images in can_be_tried)
    return {"findings": [*map(_excuse, findings)], "files": sorted(_own_files())}


def _excuse(finding: Finding) -> Finding:
    """The finding, but unknown if it failed for the lack of a GPU: a login node has none."""
    place, verdict, message = finding
    if verdict != "fails" or not _OF_GPUS.search(message) or any(map(os.path.exists, DRIVERS)):
        return finding
    return place, "unknown", f"this machine has no GPU: {message}"


def _imports(requested: list[Any], failed: set[str]) -> Iterator[Finding]:
    """Import every path, and compare its signature with the arguments; adds the paths that fail to `failed`."""
    for place, path, role, arguments in requested:
        try:
            found = import_object(path, role=role)
            if arguments is not None:
                check_call(found, path, role=role, **arguments)
        except UserError as error:
            failed.add(path)
            where = SEARCHED if isinstance(error.__cause__, ImportError) else ""
            yield place, "fails", f"{error}{where}"
        else:
            yield place, "ok", f"{role} {path!r} is imported"


def _own_files() -> Iterator[str]:
    """The files of all modules that are neither installed nor Trainyard's."""
    for module in list(sys.modules.values()):
        if file := getattr(module, "__file__", None):
            path = Path(file).absolute()
            if is_own_file(path):
                yield str(path)


def main() -> None:
    """Answer the request of stdin. What the user's code prints goes to stderr."""
    sys.dont_write_bytecode = True  # a dry run writes nothing
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        json.dump(answer(json.load(sys.stdin)), output)


if __name__ == "__main__":
    main()
