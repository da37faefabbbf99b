"""What results were made for is recorded beside them."""

from types import SimpleNamespace

import pytest
from trainyard.cli.profile import Profile
from trainyard.cli.workflow import Workflow
from trainyard.planning.receipts import FOLDER, is_outdated, made_for


def test_an_output_for_other_terms_is_outdated(tmp_path):
    output = tmp_path / "trials.csv"
    with made_for(output, "a"):
        output.write_text("x")
    assert not is_outdated(output, "a")
    assert is_outdated(output, "b")
    output.unlink()
    assert not is_outdated(output, "b"), "a rule whose output is missing runs anyway"


def test_an_output_that_was_not_made_to_its_end_is_outdated(tmp_path):
    output = tmp_path / "trials.csv"
    with made_for(output, "a"):
        output.write_text("x")

    def fail():
        with made_for(output, "b"):
            output.write_text("y")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert is_outdated(output, "a")
    assert is_outdated(output, "b")


def test_two_outputs_of_a_folder_have_terms_of_their_own(tmp_path):
    for name in ("trials.csv", "ranking.csv"):
        with made_for(tmp_path / name, name):
            (tmp_path / name).touch()
    assert not is_outdated(tmp_path / "trials.csv", "trials.csv")
    assert not is_outdated(tmp_path / "ranking.csv", "ranking.csv")


def test_an_output_without_a_record_is_not_outdated(tmp_path):
    (tmp_path / "trials.csv").touch()
    assert not is_outdated(tmp_path / "trials.csv", "a")


class Wildcards(SimpleNamespace):
    def items(self):
        return vars(self).items()


def test_snakemake_makes_an_output_again_that_was_made_for_another_config_or_lacks_results(tmp_path):
    def made_again(digest, *, lacks_results=False, is_main=True):
        outputs = []
        yard = Workflow({}, results=tmp_path, profile=Profile(None, is_main=is_main), make_again=outputs.append)
        path = f"{tmp_path}/sweeps/{{name}}/trials.csv"
        assert yard.renewal(path, lambda _: digest, lambda _: lacks_results)(Wildcards(name="s")) == []
        return outputs

    output = tmp_path / "sweeps/s/trials.csv"
    assert made_again("a", lacks_results=True) == [], "it does not exist yet"
    output.parent.mkdir(parents=True)
    with made_for(output, "a"):
        output.touch()
    assert made_again("a") == []
    assert made_again("b") == [str(output)]
    assert made_again("a", lacks_results=True) == [str(output)]
    assert made_again("b", is_main=False) == [], "a job of Slurm runs what it was submitted for"
    assert (output.parent / FOLDER / "trials").read_text() == "a"
