"""Puts a commit of Trainyard on the disk if another workflow imports it from a repository (`module`, `github(...)`).

Snakemake itself fetches single files only. The Snakefile runs this file before `trainyard` can be imported.
"""

import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any


def check_out(source: Any) -> Path:
    """The folder `scripts` of the commit that a source file of Snakemake belongs to.

    The commit is extracted beside Snakemake's own clone of the repository, in its cache in the home folder, which the
    nodes of a cluster share.
    """
    repository = source.hosted_repo
    commit = repository.repo.commit(source.ref)
    folder = Path(f"{repository.repo_clone}@{commit.hexsha}")
    if not folder.exists():
        packed = BytesIO()
        repository.repo.archive(packed, commit.hexsha)
        packed.seek(0)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as temporary:
            extracted = Path(temporary, "commit")
            with tarfile.open(fileobj=packed) as archive:
                archive.extractall(extracted, filter="data")
            try:
                extracted.rename(folder)
            except OSError:
                if not folder.exists():  # it does if another process was faster
                    raise
    return folder / "scripts"
