"""Files by which the jobs of a sweep with several tell Snakemake that they have ended, or that no trial is left."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from trainyard.utils.files import atomic_write

RUN: Final = "TRAINYARD_RUN"  # environment variable: the run of Snakemake to which a job belongs
JOBS: Final = "jobs"  # folder of the marks, in that of a sweep's results
COMPLETE: Final = "complete"  # no trial is left to run: jobs in the queue have nothing to do
CANCELLED: Final = "cancelled"  # Slurm jobs, cancelled in the queue by one that found no trial to take
DONE: Final = "{job}.done"  # of each job that has ended as it should; Snakemake writes and removes it


def set_mark(folder: Path, name: str, digests: Iterable[str]) -> None:
    """Set a mark in the sweep in `folder`, for the results with these digests."""
    (folder / JOBS).mkdir(exist_ok=True)
    with atomic_write(folder / JOBS / name) as file:
        file.write("\n".join(digests))


def read_mark(mark: Path) -> list[str]:
    """The digests of the results for which a mark was set; none if it was not."""
    try:
        return mark.read_text().splitlines()
    except FileNotFoundError:
        return []


def remove_complete_mark(folder: Path) -> None:
    """Forget that no trial was left to run."""
    (folder / JOBS / COMPLETE).unlink(missing_ok=True)


def remove_done_marks(folder: Path) -> None:
    """Forget which jobs have ended, so that Snakemake starts all of them again if trials are left."""
    for mark in (folder / JOBS).glob(DONE.format(job="*")):
        mark.unlink(missing_ok=True)
