"""Try the user's code and the trainings of a config, in a process of its own: imports may do anything.

The request has up to three lists:

    imports: [[place, path, role, arguments]]; trainings: [[place, spec, images]]; ddp: [[place, arguments]]

`arguments` of imports are what the later call passes, `{"args": [...], "kwargs": {...}}`, or null; `images` is a
`KnownImages`.
The answer is `{"findings": [[name, verdict, message]], "files": [path]}`, with the files of the user's code.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainyard.checks.findings import Finding
from trainyard.checks.helper_programs import answer_request
from trainyard.config.train import Train
from trainyard.data.known_images import KnownImages
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import check_call, import_object, is_user_file

SEARCHED: Final = " (searched: the working directory and PYTHONPATH)"
DRIVERS: Final = ("/dev/nvidiactl", "/dev/kfd")  # of NVIDIA and AMD
_OF_GPUS: Final = re.compile(r"\b(lib)?cuda|nvidia|\bhip\b", re.IGNORECASE)


def probe_code(request: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The answer to a request."""
    failed = set[str]()
    findings = list(_import_all(request.get("imports", ()), failed))
    if trainings := request.get("trainings"):
        from trainyard.checks.model_probe import probe_trainings  # torch takes seconds to import

        given = [(place, Train.model_validate(spec), KnownImages(**images)) for place, spec, images in trainings]
        can_be_tried = [each for each in given if not failed & {path for path, _ in each[1].import_paths.values()}]
        findings += probe_trainings(can_be_tried)
    for place, arguments in request.get("ddp", ()):
        from trainyard.training.process_group import ddp_arguments

        try:
            ddp_arguments(arguments)
        except UserError as error:
            findings.append(Finding(place, "fails", str(error)))
    if not any(map(os.path.exists, DRIVERS)):  # a login node has no GPU
        findings = list(map(_excuse, findings))
    modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files = {path.absolute() for path in map(Path, filter(None, modules))}
    return {
        "findings": [[each.name, each.verdict, each.message] for each in findings],
        "files": sorted(str(path) for path in files if is_user_file(path)),
    }


def _excuse(finding: Finding) -> Finding:
    """The finding, but unknown if it failed for the lack of a GPU, and not of a module."""
    is_missing = "No module named" in finding.message
    if finding.verdict == "fails" and not is_missing and _OF_GPUS.search(finding.message):
        return Finding(finding.name, "unknown", f"this machine has no GPU: {finding.message}")
    return finding


def _import_all(requested: Any, failed: set[str]) -> Iterator[Finding]:
    """Import every path, and compare its signature with the arguments; adds the paths that fail to `failed`."""
    for place, path, role, arguments in requested:
        try:
            found = import_object(path, role=role)
            if arguments is not None:
                check_call(found, path, role=role, **arguments)
        except UserError as error:
            failed.add(path)
            where = SEARCHED if isinstance(error.__cause__, ImportError) else ""
            yield Finding(place, "fails", f"{error}{where}")
        else:
            yield Finding(place, "ok", f"{role} {path!r} is imported")


if __name__ == "__main__":
    answer_request(probe_code)
