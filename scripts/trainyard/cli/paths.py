"""Profiles by their names; and paths that Snakemake or its Slurm plugin would change, which are refused at once."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from trainyard.utils.errors import UserError
from trainyard.utils.import_path import SCRIPTS

# In the plugin's `sbatch --wrap="..."`, a shell expands these; in the name of a log, Slurm expands the percent sign.
REFUSED_BY_SLURM: Final = '"$`\\%\n'
REFUSED_IN_CLONE: Final = "{}"  # wildcards


def check_paths(clone: Path, others: Iterable[Path], *, uses_slurm: bool) -> None:
    """Check the characters in the paths of the clone of Trainyard and of what jobs use besides.

    Raises:
        UserError: a path cannot be used; the message names its characters.
    """
    _check(clone, REFUSED_IN_CLONE, "Snakemake takes them for wildcards")
    if uses_slurm:
        for path in (clone, *others):
            _check(path, REFUSED_BY_SLURM, "Snakemake's Slurm plugin does not quote them in sbatch's command line")


def _check(path: Path, refused: str, reason: str) -> None:
    if found := [character for character in refused if character in str(path)]:
        raise UserError(f"{path}: its path has {' '.join(map(repr, found))} ({reason}): rename or move it")


def find_profile(name: str) -> Path:
    """The folder of a profile, by its path or its name: `slurm` is `profiles/slurm` here, or else Trainyard's own.

    Raises:
        UserError: there is none.
    """
    own = SCRIPTS.with_name("profiles")
    for folder in (Path(name), Path("profiles", name), own / name):
        if (folder / "config.yaml").exists():
            return folder
    known = ", ".join(sorted(path.parent.name for path in own.glob("*/config.yaml")))
    raise UserError(f"there is no profile {name!r}, here or in profiles/; Trainyard's own are {known}")
