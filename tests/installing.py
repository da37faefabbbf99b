"""Installs the wheel of Trainyard into an environment of its own, as a user does, with the pinned packages."""

import shutil
import subprocess
import sys
from pathlib import Path

from project import ROOT, Project

UV = shutil.which("uv") or str(Path(sys.prefix).resolve().parent / ".tools/uv/bin/uv")  # as the Makefile finds it

# A script of a user, which needs no package.
SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--out", default="model.txt")
args = parser.parse_args()
for epoch in range(1, 4):
    print(f"epoch {epoch} | loss {args.lr / epoch:.4f} | val acc {1 - args.lr / epoch:.4f}", flush=True)
open(args.out, "w").write("done")
"""


def installed_project(environment: Path, work: Path) -> Project:
    """A user's folder, whose commands find an environment with nothing but the wheel and what it requires."""
    pinned = ["--build-constraints", "envs/requirements-dev.txt", "--require-hashes"]  # as in `make wheel`
    subprocess.run(
        [UV, "build", "--quiet", "--wheel", *pinned, "--out-dir", str(environment / "dist")], cwd=ROOT, check=True
    )
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, str(environment / "env")], check=True)
    (wheel,) = (environment / "dist").glob("*.whl")
    install = [UV, "pip", "install", "--quiet", "--python", str(environment / "env/bin/python")]
    subprocess.run([*install, "--constraint", str(ROOT / "envs/requirements.txt"), str(wheel)], check=True)
    project = Project(work, environment / "env")
    del project.environment["PYTHONPATH"]  # of the tests
    project.environment |= {"PATH": f"{environment}/env/bin:/usr/local/bin:/usr/bin:/bin", "PWD": str(work)}
    return project
