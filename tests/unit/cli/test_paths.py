"""Odd paths work, or one line refuses them."""

from pathlib import Path

import pytest
from trainyard.cli.paths import check_paths
from trainyard.utils.errors import UserError

PLAIN = Path("/home/me/trainyard")


@pytest.mark.parametrize("name", ["a b", "it's", "é", "[x] * ?", "; & #", "~!", "(a)", "a,b=c:d"])
def test_a_path_that_is_quoted_everywhere_is_accepted(name):
    check_paths(PLAIN / name, [PLAIN / name], uses_slurm=True)


@pytest.mark.parametrize("character", ['"', "$", "`", "\\", "%", "\n"])
def test_a_path_that_sbatch_would_change_is_refused_with_slurm_only(character):
    odd = PLAIN / f"a{character}b"
    check_paths(odd, [odd], uses_slurm=False)
    for paths in ((odd, []), (PLAIN, [PLAIN, odd])):
        with pytest.raises(UserError, match="does not quote them in sbatch's command line") as error:
            check_paths(*paths, uses_slurm=True)
        assert repr(character) in str(error.value)


def test_braces_are_refused_in_the_path_of_the_clone_only():
    check_paths(PLAIN, [PLAIN / "{x}"], uses_slurm=True)
    with pytest.raises(UserError, match=r"its path has '\{' '\}'"):
        check_paths(PLAIN / "{x}", [], uses_slurm=False)
