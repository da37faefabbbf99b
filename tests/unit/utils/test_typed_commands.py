"""Commands in messages are as short as they can be, and name programs by what is on PATH."""

from pathlib import Path

from project import ROOT
from trainyard.utils.typed_commands import installed_program, run_call


def test_a_command_names_its_config_unless_it_is_the_default(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PWD", str(ROOT))
    assert run_call(Path("my.yaml"), "--", "data") == "trainyard run --config my.yaml -- data"
    assert run_call(Path("trainyard.yaml")) == "trainyard run"


def test_a_command_of_snakemake_has_the_folder_that_it_runs_in_if_the_shell_is_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.chdir(tmp_path / "work")
    assert run_call(Path("best.yaml"), "--", "sweeps").endswith("--config work/best.yaml --directory work -- sweeps")
    (tmp_path / "link").symlink_to("work")
    monkeypatch.setenv("PWD", str(tmp_path / "link"))
    assert "--directory" not in run_call(Path("best.yaml"), "--", "sweeps")
    for gone in ("/gone/away", ""):  # of another machine, or removed since; or it is not set
        monkeypatch.setenv("PWD", gone)
        assert run_call(Path("best.yaml"), "--", "sweeps").endswith("--config best.yaml -- sweeps")


def test_a_program_is_named_by_its_path_unless_it_is_the_one_on_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
    program = tmp_path / ".venv/bin/snakemake"
    for each in (program, tmp_path / "other/snakemake"):
        each.parent.mkdir(parents=True)
        each.touch(0o755)
    monkeypatch.setattr("sys.executable", str(program.with_name("python")))
    assert installed_program("snakemake") == ".venv/bin/snakemake"
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert installed_program("snakemake") == ".venv/bin/snakemake", "another one is on PATH"
    (tmp_path / "links").mkdir()
    (tmp_path / "links/snakemake").symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    assert installed_program("snakemake") == "snakemake", "uv and pipx link to the programs that they install"
    monkeypatch.setenv("PATH", str(program.parent))
    assert installed_program("snakemake") == "snakemake"
    assert installed_program("tensorboard") == "tensorboard", "no path to a program that is not there"
