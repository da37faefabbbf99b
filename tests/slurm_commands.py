"""Slurm's commands as a test wants them: programs on PATH that print what Slurm would print."""

import itertools
import shlex
from pathlib import Path
from typing import Final

import pytest

COMMANDS: Final = ("sacct", "sacctmgr", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
UNREACHABLE: Final = "Unable to contact slurm controller (connect failure)"
_JOBS = itertools.count(1_000_000)  # what is known of a job is cached, so each allocation has an ID of its own


class SlurmCommands:
    """Slurm's commands, which fail as without a controller until a test says what they print."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        self._cases: dict[str, list[str]] = {command: [] for command in COMMANDS}
        for command in COMMANDS:
            self.fails(command)
        monkeypatch.setenv("PATH", str(folder), prepend=":")

    def prints(self, command: str, text: str, *, of: str = "") -> None:
        """Have a command print a text, or have it do so if its arguments contain `of`."""
        self.runs(command, f"printf %s {shlex.quote(text)}", of=of)

    def fails(self, command: str, error: str = UNREACHABLE, *, of: str = "") -> None:
        self.runs(command, f"echo {shlex.quote(error)} >&2; exit 1", of=of)

    def runs(self, command: str, line: str, *, of: str = "") -> None:
        """Have a command run a line of a shell."""
        cases = self._cases[command]
        cases.insert(0, f'case "$*" in *{shlex.quote(of)}*) {line}; exit;; esac')
        (self._folder / command).write_text("\n".join(["#!/bin/sh", *cases, ""]))
        (self._folder / command).chmod(0o755)

    def allocate(self, *nodes: str, line: str = "", limit: str = "UNLIMITED") -> str:
        """Be in a job on these nodes, with further fields of `scontrol show job` in `line`; returns the job's ID."""
        job = str(next(_JOBS))
        fields = f"JobId={job} NumCPUs={len(nodes)} NodeList=n[{len(nodes)}] TimeLimit={limit} {line}"
        self.prints("scontrol", fields, of=f"show job --details --oneliner {job}")
        self.prints("scontrol", "".join(f"{node}\n" for node in nodes), of="show hostnames")
        self._monkeypatch.setenv("SLURM_JOB_ID", job)
        return job
