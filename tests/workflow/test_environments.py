"""The environments of Snakemake's `--sdm`, and those of docs/install.md: a program runs where it says."""

import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
from installing import UV
from project import ROOT, TINY

pytestmark = pytest.mark.slow

PYTHON = f"""#!/bin/sh
echo "$TRAINYARD_TEST $0 $*" >> "$PROGRAMS"
exec {sys.executable} "$@"
"""
# What Snakemake asks of conda. An environment has a `python` that records its commands.
CONDA = """#!/bin/bash
case "$*" in
"info --json") echo "{{\\"conda_prefix\\": \\"{base}\\", \\"platform\\": \\"linux-64\\"}}" ;;
--version) echo conda 25.1.0 ;;
"config --get channel_priority --json") echo '{{"get": {{"channel_priority": "strict"}}}}' ;;
"env create"*)
    while [ $# -gt 0 ]; do case "$1" in --file) file=$2 ;; --prefix) prefix=$2 ;; esac; shift; done
    [ -e "$file" ] && mkdir -p "$prefix/bin" && cp "{base}/python" "$prefix/bin/python" ;;
esac
"""


@pytest.fixture
def recording(project):
    """A project with a config, in which a `python` other than its own writes its commands to the file `programs`."""
    project.write({"datasets": TINY["datasets"]})
    project.environment["PROGRAMS"] = str(project.folder / "programs")
    return project


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_with_conda_programs_run_in_the_environment_that_it_creates(recording):
    base = recording.folder / "conda"
    executable(base / "bin/conda", CONDA.format(base=base))
    executable(base / "bin/activate", 'export PATH="$1/bin:$PATH"\n')
    executable(base / "python", PYTHON)
    recording.environment["PATH"] = f"{base}/bin:{recording.environment['PATH']}"
    recording.snakemake("data", "--sdm", "conda")
    line = (recording.folder / "programs").read_text()
    assert re.search(r"\.snakemake/conda/\w+/bin/python \S+/scripts/stage\.py --config ", line)


def test_environment_modules_are_loaded_and_the_python_stays(recording):
    executable(recording.folder / "modules/bin/python", PYTHON)
    load = 'if [ "$1" = load ]; then export TRAINYARD_TEST="$*" PATH="$MODULES/bin:$PATH"; echo "$*" >> "$PROGRAMS"; fi'
    recording.environment |= {"MODULES": str(recording.folder / "modules"), "BASH_FUNC_module%%": f"() {{ {load}\n}}"}
    recording.write({"datasets": TINY["datasets"], "env_modules": ["cuda/13.0", "gcc"]})
    recording.snakemake("data", "--sdm", "env-modules")
    assert (
        recording.folder / "programs"
    ).read_text() == 2 * "load cuda/13.0 gcc\n"  # by Snakemake, then for its exit code


def test_nothing_runs_without_its_environment_modules(recording):
    recording.environment["BASH_FUNC_module%%"] = '() { [ "$1" = purge ] || { echo "no module $2" >&2; return 1; }\n}'
    recording.write({"datasets": TINY["datasets"], "env_modules": ["cuda/13.0"]})
    output = recording.snakemake("data", "--sdm", "env-modules", check=False)
    assert "no module cuda/13.0" in output
    assert not (recording.folder / "results/data/tiny/meta.json").exists()


@pytest.fixture
def clone(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "envs", tmp_path / "envs")
    return tmp_path


def test_the_apptainer_image_is_made_by_the_commands_of_the_makefile(clone):
    definition = (ROOT / "envs/trainyard.def").read_text()
    section = re.search(r"^%post\n(.*?)^%", definition, re.DOTALL | re.MULTILINE)[1]
    image = [shlex.split(line, comments=True) for line in section.splitlines()]
    (clone / "wheels").mkdir()  # then make installs what a run needs, as the image does
    command = ["make", "--dry-run", "env", f"UV={UV}"]
    lines = subprocess.run(command, cwd=clone, text=True, capture_output=True, check=True).stdout.splitlines()
    makefile = [["uv", *shlex.split(line)[1:]] for line in lines if line.startswith(UV)]
    places = {"/opt/trainyard": ".venv", "/opt/trainyard/bin/python": ".venv/bin/python"}
    places["/opt/requirements.txt"] = "envs/requirements.txt"
    for words, expected in zip([line for line in image if line[:1] == ["uv"]], makefile, strict=True):
        ours = {places.get(word, word) for word in words} - {"--no-cache"}
        assert ours == set(expected) - {
            "--quiet",
            "--allow-existing",
            "--offline",
            "--no-index",
            "--find-links",
            "wheels",
        }
    version = re.search(r"uv==[\d.]+", (ROOT / "Makefile").read_text())[0]
    assert ["python", "-m", "pip", "install", "--root-user-action=ignore", version] in image


def test_make_env_takes_all_packages_from_wheels_if_the_folder_is_there(clone):
    """With a wheel made here, whose hash is pinned; without a network as far as this machine can take it away."""
    name = "carried-1.0-py3-none-any.whl"
    (clone / "wheels").mkdir()
    with zipfile.ZipFile(clone / "wheels" / name, "w") as wheel:
        info = "carried-1.0.dist-info"
        wheel.writestr("carried.py", "PLACE = __file__\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in (*wheel.namelist(), f"{info}/RECORD")))
    digest = sha256((clone / "wheels" / name).read_bytes()).hexdigest()
    (clone / "envs/requirements.txt").write_text(f"carried==1.0 --hash=sha256:{digest}\n")
    alone = ["unshare", "--net"] if subprocess.run(["unshare", "--net", "true"], check=False).returncode == 0 else []
    subprocess.run([*alone, "make", "env", f"UV={UV}"], cwd=clone, check=True)
    program = [str(clone / ".venv/bin/python"), "-c", "import carried; print(carried.PLACE)"]
    assert ".venv" in (place := subprocess.run(program, text=True, capture_output=True, check=True).stdout.strip())
    assert list(Path(place).parent.glob("__pycache__/carried.*.pyc")), "programs start twice as fast with byte code"
