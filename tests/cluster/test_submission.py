"""The exact sbatch lines of all jobs, which `sbatch --test-only` accepts."""

import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from project import ROOT, TINY, stage_tiny
from sweep_journals import record_attempt, session_of
from trainyard.config.load import check_config
from trainyard.planning.plan import plan_sweep

# Values for the commented lines of the profile that users of a site fill in.
SITE = {
    "slurm_account": "lab",
    "slurm_partition": "gpu",
    "qos": "normal",
    "constraint": '"nvlink&ib"',
    "gpu_type": "a100",
}
TRAIN = {"model": "cnn", "batch_size": 8}
CONFIG = {
    **TINY,
    "sweeps": {
        name: {"dataset": "tiny", "train": TRAIN, "grid": {"lr": [0.1, 0.2]}, "slots": slots}
        for name, slots in {
            "whole": {"gpus_per_node": 2},
            "shared": {"gpus_per_node": 1, "gpus_per_trial": 0.25, "cpus_per_trial": 2},
            "cpus": {"cpus": 8, "cpus_per_trial": 2},
            "pair": {"jobs": 2, "gpus_per_node": 1},
            "wide": {"nodes_per_trial": 2, "gpus_per_node": 2},
        }.items()
    }
    | {name: {"command": "true", "goal": "fastest", "slots": {"gpus_per_node": 2}} for name in ("one", "done")},
    "scaling": {"s": {"dataset": "tiny", "train": TRAIN, "scales": ["1x2", "4x2"], "cpus_per_gpu": 3}},
}
# Without quotes, as the shell passes it.
COMMON = "-A lab -p gpu --job-name={name}-trainyard -t {minutes} -C nvlink&ib --qos=normal --mem {memory} "
EXPECTED = {  # by the --comment of the job
    "rule_sweep_wildcards_whole": "--nodes=1 --requeue --cpus-per-task=2 -D {cwd} --gpus=a100:2",
    "rule_sweep_wildcards_shared": "--nodes=1 --requeue --cpus-per-task=8 -D {cwd} --gpus=a100:1",
    "rule_sweep_wildcards_cpus": "--nodes=1 --requeue --ntasks=1 --cpus-per-task=8 -D {cwd}",
    "rule_sweep_wildcards_wide": (
        "--nodes=2 --requeue --ntasks=2 --cpus-per-task=1 --ntasks-per-node=1 -D {cwd} --gres=gpu:a100:2"
    ),
    "rule_sweep_job_wildcards_pair_0": "--nodes=1 --requeue --cpus-per-task=1 -D {cwd} --gpus=a100:1",
    "rule_sweep_job_wildcards_pair_1": "--nodes=1 --requeue --cpus-per-task=1 -D {cwd} --gpus=a100:1",
    "rule_sweep_wildcards_one": "--nodes=1 --requeue --cpus-per-task=1 -D {cwd} --gpus=a100:1",
    "rule_sweep_wildcards_done": "--nodes=1 --requeue --ntasks=1 --cpus-per-task=1 -D {cwd}",
    "rule_train_wildcards_s_1x2": "--nodes=1 --requeue --cpus-per-task=6 -D {cwd} --gpus=a100:2",
    "rule_train_wildcards_s_4x2": (
        "--nodes=4 --requeue --ntasks=4 --cpus-per-task=6 --ntasks-per-node=1 -D {cwd} --gres=gpu:a100:2"
    ),
}
MEMORY = {  # of a host's 16000 MB, of which a GPU's share is half
    "rule_sweep_wildcards_whole": 14000,
    "rule_sweep_wildcards_shared": 7600,
    "rule_sweep_wildcards_cpus": 15200,
    "rule_sweep_wildcards_wide": 14000,
    "rule_sweep_job_wildcards_pair_0": 7600,
    "rule_sweep_job_wildcards_pair_1": 7600,
    "rule_sweep_wildcards_one": 7600,
    "rule_sweep_wildcards_done": 4000,
    "rule_train_wildcards_s_1x2": 14000,
    "rule_train_wildcards_s_4x2": 14000,
}
MINUTES = {"rule_sweep_wildcards_done": 10}  # by default 60
SHARE = ", limited to the share of a node"
IN_WORDS = {  # nodes, GPUs and CPUs per node, memory, minutes
    "sweep one": ("1", "1 a100", "1", f"7.6 GB (assuming 8 GB per slot{SHARE})", "60"),
    "sweep done": ("1", "none", "1", "4 GB (assuming 2 GB per job)", "10"),
    "sweep whole": ("1", "2 a100", "2", "14 GB (assuming 5.8 GB per slot)", "60"),
    "sweep shared": ("1", "1 a100", "8", f"7.6 GB (assuming 5.8 GB per slot{SHARE})", "60"),
    "sweep cpus": ("1", "", "8", "15.2 GB (assuming 5.8 GB per slot, limited to the share of a node)", "60"),
    "sweep wide": ("2", "2 a100", "1", "14 GB (assuming 5.8 GB per GPU)", "60"),
    "sweep pair": ("1", "1 a100", "1", f"7.6 GB (assuming 5.8 GB per slot{SHARE})", "60"),
    "training at 1x2": ("1", "2 a100", "6", "14 GB (assuming 5.8 GB per rank)", "60"),
    "training at 4x2": ("4", "2 a100", "6", "14 GB (assuming 5.8 GB per rank)", "60"),
}
REQUEST = "nodes: {}, GPUs per node: {}, CPUs per node: {}, memory per node: {}, walltime: {} min"
# An sbatch that records its arguments and the answer of --test-only, and submits nothing.
SBATCH = """#!/bin/bash
line="$*"
comment=$(sed -E 's/.*--comment ([^ ]+) .*/\\1/' <<< "$line")
echo "${line%% --wrap=*}" > "$ASKED/$comment.line"
/usr/bin/sbatch --test-only "$@" > "$ASKED/$comment.answer" 2>&1
echo "exit code $?" >> "$ASKED/$comment.answer"
echo "recorded, not submitted" >&2
exit 1
"""


@pytest.fixture(scope="module")
def submitted(cluster):
    """The folder, the arguments of sbatch and the answer of Slurm for each job, and the output of `-n`."""
    folder = cluster.shared / "submission"
    asked, program, profile = folder / "asked", folder / "bin/sbatch", folder / "profile/config.yaml"
    for made in (asked, program.parent, profile.parent):
        made.mkdir(parents=True)
    program.write_text(SBATCH)
    program.chmod(0o755)
    profile.write_text(site_profile())
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    stage_tiny(folder / "results")
    with session_of(folder / "results/sweeps/done") as journal:  # only the tables are missing
        for name in plan_sweep(check_config(CONFIG), "done", folder / "results").state.trials:
            record_attempt(journal, name, seconds=1.0)
    snakemake = [str(Path(sys.executable).with_name("snakemake")), "--snakefile", f"{ROOT}/Snakefile"]
    options = ["--profile", "profile", "--configfile", "config.yaml", "--retries", "0"]
    targets = ["--", "sweeps", "scaling"]
    output = cluster.run([*snakemake, *options, "-n", "--verbose", *targets], cwd=folder).stdout
    path = [f"PATH={program.parent}:{Path(sys.executable).parent}:/usr/bin:/bin", f"ASKED={asked}"]
    cluster.run(["env", *path, *snakemake, *options, *targets], cwd=folder, check=False)
    lines = {path.stem: path.read_text() for path in asked.glob("*.line")}
    answers = {path.stem: path.read_text() for path in asked.glob("*.answer")}
    yield folder, lines, answers, output
    shutil.rmtree(folder)


def site_profile() -> str:
    """The shipped profile with its first block filled in."""
    text = (ROOT / "profiles/slurm/config.yaml").read_text()
    for name, value in SITE.items():
        text, found = re.subn(rf"^  # {name}: .*$", f"  {name}: {value}", text, flags=re.MULTILINE)
        assert found == 1, f"the profile has a commented line for {name}"
    return text


@pytest.mark.parametrize("job", EXPECTED)
def test_a_job_is_submitted_with_exactly_this_sbatch_line(submitted, job):
    folder, lines, _, _ = submitted
    line = lines[job]
    head, _, rest = line.partition(f"--export=ALL --comment {job} ")
    assert re.fullmatch(r"--parsable --job-name [0-9a-f-]{36} --output \S+/%j\.log ", head)
    assert (
        rest.split()
        == (COMMON + EXPECTED[job])
        .format(
            cwd=folder,
            name=job.partition("_wildcards_")[2].replace("_", "-"),
            minutes=MINUTES.get(job, 60),
            memory=MEMORY[job],
        )
        .split()
    )


@pytest.mark.parametrize("job", EXPECTED)
def test_slurm_accepts_the_sbatch_line(submitted, job):
    answer = submitted[2][job]
    assert "exit code 0" in answer
    assert re.search(r"Job \d+ to start at", answer)


@pytest.mark.parametrize("job", IN_WORDS)
def test_a_dry_run_describes_the_request(submitted, job):
    output = submitted[3]
    request = re.escape(REQUEST.format(*IN_WORDS[job]).replace(" GPUs per node: ,", ""))  # of a sweep without GPUs
    assert re.search(rf"{job}.*; to be submitted with {request}\n", output)
