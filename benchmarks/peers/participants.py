"""Who takes part: one folder each, with the files that a user writes and a peer.py that says how they are used."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from peers.works import GPUS_PER_NODE, Work

HERE = Path(__file__).parent
NOT_WRITTEN_BY_USERS = {"peer.py", "README.md"}
OPTIONS = ("#!", "#SBATCH")  # comments that are written for a program


@dataclass(frozen=True)
class Peer:
    """A participant.

    Commands are bash command lines, run in a folder with the participant's files, trials.txt and trial.sh. In them,
    {nodes}, {gpus} (per node), {slots}, {trials} (their number), {jobs} of {gpus_per_job}, and {workers} (jobs of one
    GPU) are filled in.
    """

    name: str
    title: str
    documentation: tuple[str, ...]  # the pages that were followed
    version: str  # a command whose first line of output has the version
    submit: tuple[str, ...]  # what a user types; each returns when it has submitted, or when all is done
    resume: tuple[str, ...]  # what a user types after a kill or a failed trial, until all trials have finished
    folder: str = ""  # with its files; by default, its name
    programs: str = ""  # a folder that is first on PATH, relative to the repository; by default Trainyard's environment
    package: str = ""  # of Debian, with a program of this name
    log: str = ""  # a command that prints the lines of trials.log, if its trials cannot write them
    cannot: Mapping[str, str] = field(default_factory=dict)  # name of a work: why it is not done
    files_for: Mapping[str, str] = field(default_factory=dict)  # name of a work: the subfolder with its own files
    causes: Mapping[str, str] = field(default_factory=dict)  # column: why Trainyard is not first there
    note: str = ""  # settings, and what it does not do, for the page

    def files(self, work: Work) -> list[Path]:
        """What the user writes for this work."""
        folder = HERE / (self.folder or self.name)
        if work.name in self.files_for:
            folder /= self.files_for[work.name]
        return sorted(path for path in folder.iterdir() if path.is_file() and path.name not in NOT_WRITTEN_BY_USERS)

    def lines(self, work: Work) -> int:
        """The lines that the user writes: of the files, neither blank nor a comment, and the commands to submit."""
        lines = [line.strip() for path in self.files(work) for line in path.read_text().splitlines()]
        return len(self.submit) + sum(bool(line) and (line.startswith(OPTIONS) or line[0] != "#") for line in lines)


def fill_in(commands: tuple[str, ...], work: Work) -> list[str]:
    """The commands for the shape of a work."""
    values = {
        "nodes": work.nodes,
        "gpus": GPUS_PER_NODE,
        "slots": work.slots,
        "trials": len(work.seconds),
        "workers": work.workers,
        "jobs": work.workers // work.gpus_per_job,
        "gpus_per_job": work.gpus_per_job,
    }
    return [command.format(**values) for command in commands]


def participants() -> dict[str, Peer]:
    """All participants by name; Trainyard is the first."""
    found: list[Peer] = []
    for file in sorted(HERE.glob("*/peer.py")):
        found += importlib.import_module(f"peers.{file.parent.name}.peer").PEERS
    found.sort(key=lambda peer: not peer.name.startswith("trainyard"))
    return {peer.name: peer for peer in found}
