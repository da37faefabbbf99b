"""Seconds of the embedded demo and of its report; the goal is three minutes on two cores.

python benchmarks/demo.py
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import ROOT, print_table


def main() -> None:
    """Run the demo as `make run` does, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name("snakemake")), "--snakefile", str(ROOT / "Snakefile")]
        command += ["--profile", str(ROOT / "profiles/local"), "--configfile", str(ROOT / "config/config.yaml")]
        command += ["--directory", folder, "--quiet", "all"]
        seconds = [seconds_of(command), seconds_of([*command, "--report", f"{folder}/report.html"])]
    print_table(["demo", "seconds"], [["run", f"{seconds[0]:.0f}"], ["report", f"{seconds[1]:.0f}"]])


def seconds_of(command: list[str]) -> float:
    """Wall-clock seconds of a command."""
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


if __name__ == "__main__":
    main()
