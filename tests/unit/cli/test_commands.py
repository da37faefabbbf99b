"""The command `trainyard`: what it runs for a verb, and what it says to a wrong one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from project import ROOT
from trainyard.cli.commands import OF_SNAKEMAKE, VERBS, build_call, find_program, main, name_config
from trainyard.cli.screen import Screen
from trainyard.utils.errors import UserError
from trainyard.utils.typed_commands import TYPED

SNAKEMAKE = [str(Path(sys.executable).with_name("snakemake")), "--snakefile", str(ROOT / "Snakefile"), "--profile"]
LOCAL = str(ROOT / "profiles/local")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("disable", "freeze"):
        monkeypatch.setattr(f"gc.{name}", lambda: None)
    (tmp_path / "trainyard.yaml").touch()
    return tmp_path


@pytest.fixture
def refused(folder, monkeypatch):
    """Types words, and returns the error with which they are refused before Snakemake does anything."""

    def type_words(*words):
        monkeypatch.setattr("snakemake.cli.args_to_api", lambda arguments, parser: pytest.fail("it runs"))
        monkeypatch.setattr(Screen, "take_over", lambda self: None)
        monkeypatch.setattr(sys, "argv", ["trainyard", *words])
        monkeypatch.setenv(TYPED, "")
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code

    return type_words


def test_options_and_targets_of_snakemake_are_passed_on(folder):
    words = ["--jobs", "4", "--forcerun", "a", "b", "--", "sweeps"]
    configured = ["--jobs", "4", "--forcerun", "a", "b", "--configfile", "trainyard.yaml"]
    assert build_call("plan", words) == [*SNAKEMAKE, LOCAL, *configured, "--dry-run", "--", "sweeps"]


@pytest.mark.parametrize("words", [[], ["-np"], ["--dryrun"], ["--quiet", "host"], ["-q"], ["-p"], ["--verbose"]])
def test_a_run_has_its_own_screen_unless_snakemakes_is_asked_for(folder, monkeypatch, words):
    taken = []
    monkeypatch.setenv(TYPED, "")
    monkeypatch.setattr(Screen, "take_over", lambda self: taken.append(self))
    monkeypatch.setattr("snakemake.cli.args_to_api", lambda arguments, parser: True)
    monkeypatch.setattr(sys, "argv", ["trainyard", "run", *words])
    with pytest.raises(SystemExit):
        main()
    assert len(taken) == (not words)


def test_a_plan_is_a_dry_run(folder):
    (folder / "my.yaml").touch()
    words = ["--config", "my.yaml", "-C", "sweeps=none"]
    configured = ["-C", "sweeps=none", "--configfile", "my.yaml"]
    assert build_call("plan", words) == [*SNAKEMAKE, LOCAL, *configured, "--dry-run"]


def test_an_option_that_nobody_has_is_one_error_that_names_the_one_that_was_meant(folder, refused):
    assert refused("run", "--profle", "slurm") == "trainyard: there is no option '--profle'; did you mean '--profile'?"
    unknown = "trainyard: there is no option '--zzz'; `snakemake --help` lists all"
    assert refused("plan", "--zzz=1", "--", "sweeps") == unknown
    assert "there is no option '--json'; `trainyard status --json` and `trainyard best" in refused("run", "--json")
    assert re.fullmatch(
        r"trainyard: argument [^\n]*--retries[^\n]*: expected one argument", refused("run", "--retries")
    )
    assert "an option has a value that Snakemake cannot read" in refused("run", "--set-resources", "9")
    (folder / "profiles/wrong").mkdir(parents=True)
    (folder / "profiles/wrong/config.yaml").write_text("retries: few\n")
    error = refused("run", "--profile", "wrong")
    assert re.fullmatch(r"trainyard: argument [^\n]*--retries[^\n]*: invalid int value: 'few'", error)
    assert refused("run", "--workflow-profile", "wrong") == error


@pytest.mark.parametrize(("verb", "code"), [("plan", 0), ("run", 1)])
def test_snakemake_runs_in_this_process_and_ends_it(folder, monkeypatch, capsys, verb, code):
    """Its import takes more than a second: in another process, it would be imported again after a look at options."""

    def run_snakemake(arguments, parser):
        called.extend(sys.argv)
        assert arguments.jobs == 4
        assert arguments.rerun_triggers, "the profile has been read"
        return code == 0

    called = []
    monkeypatch.setenv(TYPED, "")
    monkeypatch.setattr(Screen, "take_over", lambda self: None)
    monkeypatch.setattr("snakemake.cli.args_to_api", run_snakemake)
    monkeypatch.setattr(sys, "argv", ["trainyard", verb, "--jobs", "4"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code
    assert called == build_call(verb, ["--jobs", "4"])
    assert capsys.readouterr().err == "", "nor does it say which profile it uses"


def test_garbage_is_collected_when_snakemake_runs(folder, monkeypatch):
    """Also by a Snakefile that is not Trainyard's."""
    steps = []
    monkeypatch.setenv(TYPED, "")
    monkeypatch.setattr(Screen, "take_over", lambda self: None)
    monkeypatch.setattr("gc.disable", lambda: steps.append("disable"))
    monkeypatch.setattr("gc.freeze", lambda: steps.append("freeze"))
    monkeypatch.setattr("gc.enable", lambda: steps.append("enable"))
    monkeypatch.setattr("snakemake.cli.args_to_api", lambda arguments, parser: steps.append("run"))
    monkeypatch.setattr(sys, "argv", ["trainyard", "run"])
    with pytest.raises(SystemExit):
        main()
    assert steps == ["disable", "freeze", "enable", "run"]


def test_the_version_of_snakemake_is_printed_once(folder, refused, capsys):
    assert refused("plan", "--version") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("typed", [["--set-resources", "train:runtime=9"], ["--set-resources=train:runtime=9"]])
def test_resources_of_the_profile_that_typed_ones_replace_are_named(folder, capsys, typed):
    """Otherwise Snakemake would charge another account without a word."""
    (folder / "profiles/own").mkdir(parents=True)
    profile = "default-resources: [slurm_account=lab, runtime=60]\nset-resources: {train: {runtime: 5, mem_mb: 7}}\n"
    (folder / "profiles/own/config.yaml").write_text(profile)
    build_call("run", ["--profile", "own"])
    assert capsys.readouterr().err == ""
    build_call("run", ["--profile", "own", *typed, "--default-resources", "slurm_partition=a"])
    default, of_rules = capsys.readouterr().err.splitlines()
    assert re.search(r"default-resources of .*: slurm_account=lab, runtime=60; type those", default)
    assert re.search(r"set-resources of .*: train; type those", of_rules)


def test_a_config_file_for_snakemake_takes_the_place_of_the_default(folder):
    (folder / "trainyard.yaml").rename(folder / "a.yaml")
    (folder / "b.yaml").touch()
    words = ["--configfile", "a.yaml", "b.yaml"]
    assert build_call("plan", words) == [*SNAKEMAKE, LOCAL, *words, "--dry-run"]


@pytest.mark.parametrize("words", [[], ["--configfile", "trainyard.yaml"]])
@pytest.mark.parametrize("verb", ["plan", "run"])
def test_a_config_that_is_no_yaml_is_our_error_and_not_snakemakes(folder, refused, verb, words):
    (folder / "trainyard.yaml").write_text("sweeps:\n  s:\n    command: x\n   grid: {x: [1]}\n")
    assert re.match(
        r"trainyard: trainyard\.yaml, line 4, .*: not valid YAML: .*; indent 'grid: ", refused(verb, *words)
    )


def test_a_profile_is_found_by_its_name_first_in_the_working_directory(folder):
    assert build_call("run", ["--profile", "slurm"])[4] == str(ROOT / "profiles/slurm")
    (folder / "profiles/slurm").mkdir(parents=True)
    (folder / "profiles/slurm/config.yaml").write_text("cores: 1\n")
    assert build_call("run", ["--profile", "slurm"])[4] == "profiles/slurm"
    with pytest.raises(UserError, match=r"no profile 'slurn', here or in profiles/; Trainyard's own are local, slurm"):
        build_call("run", ["--profile=slurn"])


def test_without_a_config_the_error_says_where_one_comes_from(folder):
    (folder / "trainyard.yaml").unlink()
    with pytest.raises(UserError, match=r"there is no trainyard\.yaml in .*init.* writes one for a script"):
        build_call("run", [])


def test_a_verb_runs_the_program_of_its_name(tmp_path):
    assert find_program("check") == ROOT / "scripts/check.py"
    with pytest.raises(UserError, match="`import` is `init` now"):
        find_program("import")
    assert find_program("event-files") == ROOT / "scripts/event_files.py"
    for wrong in ("chek", "--chek", "trainyard/__main__"):
        with pytest.raises(UserError, match=r"there is no .*`trainyard --help` explains them"):
            find_program(wrong)


def test_every_verb_of_the_help_does_something():
    assert all(verb in OF_SNAKEMAKE or find_program(verb).exists() for verb in VERBS)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["my.yaml"], ["--config", "my.yaml"]),
        (["-n", "my.yml"], ["-n", "--config", "my.yml"]),
        (["--config", "my.yaml"], ["--config", "my.yaml"]),
        (["--config=my.yaml"], ["--config=my.yaml"]),
        (["--configfile", "a.yaml", "b.yaml"], ["--configfile", "a.yaml", "b.yaml"]),
        (["--configfile=a.yaml"], ["--configfile=a.yaml"]),
        (["--profile", "my.yaml"], ["--profile", "my.yaml"]),
        (["-C", "x=1", "--", "my.yaml"], ["-C", "x=1", "--", "my.yaml"]),
        (["--json", "my.yaml"], ["--json", "--config", "my.yaml"]),
        (["--configfile", "my.yaml", "-n"], ["--configfile", "my.yaml", "-n"]),
        (["--profile=slurm", "my.yaml"], ["--profile=slurm", "--config", "my.yaml"]),
        (["--set-resources=sweep:runtime=9", "my.yaml"], ["--set-resources=sweep:runtime=9", "--config", "my.yaml"]),
        (["-j4", "my.yaml"], ["-j4", "--config", "my.yaml"]),
        (["sweeps"], ["sweeps"]),
    ],
)
def test_a_config_file_needs_no_option(words, named):
    assert name_config(words) == named


@pytest.mark.parametrize("option", ["--forceall", "-F", "-k", "--report"])
def test_a_config_file_is_not_lost_behind_an_option_that_may_have_a_value(option):
    """The default config would run in its place."""
    with pytest.raises(UserError, match=f"is my.yaml the config, or the value of {option}"):
        name_config([option, "my.yaml"])


@pytest.mark.parametrize("verb", ["best", "status", "report"])
def test_a_verb_that_needs_no_profile_takes_that_of_the_run(folder, verb):
    line = [sys.executable, str(find_program(verb)), "--profile", "slurm", "--config", "absent.yaml"]
    done = subprocess.run(line, text=True, capture_output=True, check=False)
    assert "absent.yaml" in done.stdout
    assert not done.stderr
