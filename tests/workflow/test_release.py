"""What a release and the repository's host need: versions, pinned actions, the catalog's rules, the run of .test/."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from project import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
STEPS = [
    (path.name, step)
    for path in WORKFLOWS
    for job in yaml.safe_load(path.read_text())["jobs"].values()
    for step in job["steps"]
]


def test_one_version_is_the_latest_of_the_changelog():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    changelog = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\S+)$", changelog, re.MULTILINE)
    assert released[0] == (version, str(cited["date-released"])), "the lines of the latest version"
    assert cited["version"] == version
    for name, date in released:
        assert f"[{name}]: #{name.replace('.', '')}---{date}" in changelog.splitlines()


def test_actions_are_pinned_to_commits_with_their_version():
    used = [line.strip() for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    assert len(used) > 5
    for line in used:
        assert re.fullmatch(r"- uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line
    assert len({line.partition("@")[0]: line for line in used}) == len(set(used)), "one version of each"


def test_workflows_run_what_the_makefile_and_ci_have():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = [step["run"] for _, step in STEPS if "run" in step]
    assert ".ci/run" in commands
    assert "make test-all" in commands
    for command in commands:
        words = command.split()
        assert words[0] != "make" or words[1] in targets
        assert not words[0].startswith(".ci") or (ROOT / words[0]).stat().st_mode & 0o100


def test_the_workflow_catalog_lists_it_with_standardized_usage():
    """The rules of snakemake/snakemake-workflow-catalog (scripts/generate-catalog.py) that need no host."""
    readme = (ROOT / "README.md").read_text().lower()
    assert "snakemake" in readme
    assert "workflow" in readme
    assert (ROOT / "workflow/Snakefile").is_file()
    assert list((ROOT / "workflow/rules").glob("*.smk"))
    assert (ROOT / "config/README.md").is_file()
    usage = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    flags = usage["mandatory-flags"]["flags"].split()
    assert (ROOT / flags[flags.index("--profile") + 1] / "config.yaml").is_file()
    deployed = usage["software-stack-deployment"]
    assert deployed == {"conda": True, "apptainer": False, "apptainer+conda": False, "report": True}
    assert usage["report"] is True


@pytest.mark.slow
def test_the_run_of_the_github_action(tmp_path):
    """As snakemake/snakemake-github-action starts it, but with results elsewhere."""
    shutil.copytree(ROOT / ".test", tmp_path / ".test", ignore=shutil.ignore_patterns("results", ".snakemake"))
    steps = [step["with"] for _, step in STEPS if step.get("uses", "").startswith("snakemake/snakemake-github-action@")]
    assert [step["directory"] for step in steps] == [".test", ".test"]
    for step in steps:
        options = ["--directory", str(tmp_path / ".test"), "--snakefile", step["snakefile"], *step["args"].split()]
        line = [str(Path(sys.executable).with_name("snakemake")), "--show-failed-logs", *options]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / ".test/results/sweeps/trees/trials.csv").exists()
