"""The tables that compare participants, and the lines that they are made from."""

import pytest
from peers.participants import NOT_WRITTEN_BY_USERS, fill_in, participants
from peers.records import over_limit_before
from peers.tables import (
    PAGE,
    Column,
    not_first,
    results,
    summary,
    within_noise,
    work_table,
)
from peers.works import measured_works, works

PEERS = participants()
WORKS = works(scale=1, short_trials=10)
SECONDS = Column("seconds", "seconds")


def run(peer: str, repeat: int, **values) -> dict:
    made = {"work": "depth", "peer": peer, "repeat": repeat, "scale": 1, "trials": 20, "reason": "", "gpu_seconds": 200}
    return {**made, "seconds": 50.0, **values}


def runs_of(peer: str, *seconds: float) -> list[dict]:
    return [run(peer, repeat, seconds=value) for repeat, value in enumerate(seconds, start=1)]


def test_a_median_is_within_noise_if_its_range_reaches_into_that_of_the_best():
    runs = {"a": runs_of("a", 10, 12, 14), "b": runs_of("b", 13, 15, 16), "c": runs_of("c", 15, 16, 17), "none": []}
    assert within_noise(SECONDS, runs) == {"a", "b"}
    assert within_noise(SECONDS, {"a": [run("a", 1, seconds=None)]}) == set()


def test_the_table_has_medians_ranges_and_reasons():
    failed = run("srun-steps", 2, reason="not over after 9 s: 3 of 20 trials finished", seconds=None)
    runs = [*runs_of("sbatch", 50, 52, 60), *runs_of("srun-steps", 70), failed, {**failed, "peer": "gnu-parallel"}]
    table = "\n".join(work_table(WORKS["depth"], runs, PEERS))
    assert "| Separate sbatch jobs | **52.0** (50.0 to 60.0) |" in table
    assert "| srun steps in one job | 70.0; not over after 9 s: 3 of 20 trials finished (1 of 2 runs) |" in table
    assert "| GNU parallel in one job | not over after 9 s: 3 of 20 trials finished |" in table
    assert "Job array" not in table  # it was not run


def test_the_summary_has_the_median_of_each_work():
    failed = {**run("srun-steps", 1, seconds=None, reason="not over"), "work": "short", "trials": 10}
    short = {**run("sbatch", 1, seconds=30), "work": "short", "trials": 10}
    runs = [*runs_of("sbatch", 50, 52, 60), *runs_of("srun-steps", 70), short, failed]
    table = summary({name: WORKS[name] for name in ("depth", "short")}, runs, PEERS)
    assert table == [
        "|  | Depth sweep | Many short |",
        "| --- | --- | --- |",
        "| Separate sbatch jobs | **52.0** | **30.0** |",
        "| srun steps in one job | 70.0 | not finished |",
    ]


def test_the_page_says_where_trainyard_is_not_first_and_why():
    runs = [*runs_of("trainyard", 60), *runs_of("sbatch", 50)]
    said = "\n".join(not_first(WORKS["depth"], runs, PEERS))
    assert "- submit to finish (s) (Separate sbatch jobs is first). Cause: " in said
    assert "GPU-seconds" not in said
    assert not_first(WORKS["depth"], runs_of("trainyard", 60), PEERS) == []


def test_runs_of_another_scale_are_left_out():
    assert results(WORKS, [run("sbatch", 1, scale=0.5)], PEERS) == []
    assert "### Depth sweep" in results(WORKS, [run("sbatch", 1)], PEERS)


def test_the_page_shows_each_work_at_the_largest_scale_at_which_it_was_measured():
    runs = [run("sbatch", 1), run("sbatch", 1, scale=0.25), {**run("sbatch", 1, scale=0.5), "work": "trouble"}]
    found = measured_works(runs, short_trials=10)
    assert {name: (work.scale, max(work.seconds)) for name, work in found.items()} == {
        "depth": (1, 17.0),
        "trouble": (0.5, 4.25),
    }


def test_a_participant_over_its_limit_is_not_measured_again():
    late = [run("sbatch", 1, reason="not over after 9 s: 3 of 20 trials finished")]
    assert over_limit_before(run("sbatch", 2), late)
    assert not over_limit_before(run("srun-steps", 2), late)
    assert not over_limit_before(run("sbatch", 2, scale=0.5), late)
    assert not over_limit_before(run("sbatch", 2), [run("sbatch", 1)])


@pytest.mark.parametrize("name", PEERS)
def test_participants_say_what_they_do(name):
    peer = PEERS[name]
    assert peer.title
    assert peer.documentation
    assert peer.submit
    assert peer.resume
    assert set(peer.cannot) <= set(WORKS)
    for work in WORKS.values():
        if work.name not in peer.cannot:
            assert fill_in((*peer.submit, *peer.resume), work)
            assert peer.files(work), "what a user writes is in a file"
            assert not {path.name for path in peer.files(work)} & NOT_WRITTEN_BY_USERS


def test_the_page_lists_all_participants():
    page = PAGE.read_text()
    missing = [peer.title for peer in PEERS.values() if f"| {peer.title} |" not in page]
    assert not missing, "make bench-peers ARGS=--table writes the page"
