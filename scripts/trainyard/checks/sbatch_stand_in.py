"""A program in place of sbatch, which has Slurm test each request, records it and submits nothing.

Another one is in place of squeue, and lists no job: Snakemake submits none while it does not know which are live.

A shell that cannot execute the first program of a name on PATH runs the next one: where the temporary folder is mounted
noexec, that would be the true sbatch. Therefore no other program that submits jobs is on the PATH of the stand-in, and
it has to answer once before it is used.
"""

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainyard.utils.errors import UserError

SUBMITTING = ("sbatch", "srun", "salloc", "scancel")  # programs that start or end jobs
PROGRAM = """#!/bin/sh
if [ "$*" = --version ]; then echo {nonce}; exit 0; fi
response=$(PATH={path} {sbatch} --test-only "$@" 2>&1)
{python} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$?" "$response" "$@" > {records}/$$.json
echo "tested, not submitted" >&2
exit 1
"""


@dataclass(frozen=True)
class StandIn:
    """A program that responds like sbatch, in an environment without the real one."""

    folder: Path  # on a file system that permits execution
    environment: dict[str, str]

    def records(self) -> list[list[str]]:
        """The exit code of sbatch, its response and its arguments, for each request so far."""
        return [json.loads(path.read_text()) for path in sorted((self.folder / "records").iterdir())]


@contextmanager
def sbatch_stand_in(folders: Sequence[Path]) -> Iterator[StandIn]:
    """A stand-in below the first of these folders that permits execution; it is removed at the end.

    Raises:
        UserError: none of them does.
    """
    for parent in dict.fromkeys(folders):
        try:
            folder = Path(tempfile.mkdtemp(prefix="trainyard-doctor-", dir=parent))
        except OSError:  # it does not exist, is full or read-only
            continue
        try:
            if stand_in := _build(folder):
                yield stand_in
                return
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    tried = ", ".join(map(str, dict.fromkeys(folders)))
    raise UserError(f"no program can be executed in {tried} (mounted noexec?): set TMPDIR to a folder that permits it")


def _build(folder: Path) -> StandIn | None:
    """The stand-in in a new folder; None if another program, or none, answers in its place."""
    program, nonce = folder / "bin/sbatch", secrets.token_hex(16)
    (folder / "records").mkdir()
    program.parent.mkdir()
    values = {"sbatch": shutil.which("sbatch"), "python": sys.executable, "records": folder / "records",
              "path": os.environ["PATH"]}  # fmt: skip
    queue = program.with_name("squeue")  # no job of the new folder is live, and Snakemake would wait for a true answer
    queue.write_text("#!/bin/sh\n")
    program.write_text(PROGRAM.format(nonce=nonce, **{name: shlex.quote(str(value)) for name, value in values.items()}))
    for file in (program, queue):
        file.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BASH_FUNC_sbatch")}
    environment["PATH"] = ":".join([str(program.parent), *_without_submitting(os.environ["PATH"], folder)])
    # As Snakemake's plugin calls it: through the shell.
    done = subprocess.run(
        "sbatch --version", shell=True, env=environment, text=True, capture_output=True, check=False, cwd=folder
    )
    return StandIn(folder, environment) if done.stdout.strip() == nonce else None


def _without_submitting(path: str, folder: Path) -> Iterator[str]:
    """The entries of PATH; in place of those with programs that submit jobs, folders with links to their others.

    A folder that this user may not enter is kept, since nothing in it can be executed.
    """
    for number, entry in enumerate(Path(each).absolute() for each in path.split(":") if each):
        # Before Python 3.14, `Path.exists` raises an error in a folder that this user may not enter.
        if not any(os.path.exists(entry / name) for name in SUBMITTING):  # noqa: PTH110
            yield str(entry)
            continue
        links = folder / f"path-{number}"
        links.mkdir()
        for name in _list_names(entry):
            if name not in SUBMITTING:
                (links / name).symlink_to(entry / name)
        yield str(links)


def _list_names(folder: Path) -> list[str]:
    """The names in a folder; none if this user may enter it, but not list it."""
    try:
        return os.listdir(folder)
    except OSError:
        return []
