"""The captions of the report say the conclusion of a study, which Snakemake writes again for each file."""

from unittest.mock import Mock

from trainyard.cli.conclusion import Conclusion
from trainyard.config.load import check_config
from trainyard.results import ranking


def test_the_captions_of_a_sweep_rank_it_once(tmp_path, monkeypatch):
    config = check_config({"sweeps": {"s": {"function": "os:getcwd", "grid": {"lr": [1, 2]}}}})
    ranked = Mock(wraps=ranking.rank_sweep)
    monkeypatch.setattr(ranking, "rank_sweep", ranked)
    conclusion = Conclusion(config, "sweeps", "s", tmp_path)
    assert [f"{conclusion}", str(conclusion)] == ["No trial has finished."] * 2
    assert ranked.call_count == 1
