"""`snakemake -n` with a wrong config: one error, exit code 1, nothing executed or written."""

import pytest
from slurm_cluster.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

NAME = "a; touch executed; $(touch executed)"
MISTAKES = f"datasets: {{'{NAME}': {{source: digits}}}}\npricing: {{gpu_hour: free}}\nsweps: {{}}"
WRONG = {  # content, options, and what is said
    "mistakes": (
        MISTAKES,
        [],
        [
            "3 errors in mistakes.yaml",
            "a name is used for a folder",
            "pricing.gpu_hour: ",
            "sweps: unknown key; did you mean 'sweeps'?",
        ],
    ),
    "selection": ("datasets: {}", ["--config", f"sweeps={NAME}"], ["--config sweeps: there is no 'a; touch executed"]),
    "absent data": (
        "datasets: {a: {source: imagefolder, root: nowhere}}",
        [],
        ["datasets.a.root: nowhere: no such file"],
    ),
    "twice": (
        "datasets: {}\nsweeps: {}\ndatasets: {}",
        [],
        ["twice.yaml, line 3, column 1: not valid YAML: duplicate key"],
    ),
}


def test_a_wrong_config_is_one_error_and_nothing_is_executed_or_written(project):
    started = {}
    for name, (content, options, _) in WRONG.items():
        project.config_file = project.folder / f"{name}.yaml"
        project.config_file.write_text(content)
        started[name] = project.start(*project.snakemake_command("-n", *options))
    for name, (_, _, messages) in WRONG.items():
        output = started[name].communicate(timeout=PATIENCE_SECONDS)[0]
        assert started[name].returncode == 1, name
        assert [output.count(message) for message in messages] == [1] * len(messages), output
        assert output.count("Error") == 1
        assert "Traceback" not in output
        assert 'File "' not in output, "no lines of the Snakefile"
    assert sorted(path.name for path in project.folder.iterdir()) == sorted(f"{name}.yaml" for name in WRONG)
