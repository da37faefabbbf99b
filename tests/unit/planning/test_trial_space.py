"""The further seeds of a sweep: those that its config needs, and those that count once they have run."""

from trainyard.config.sweep import TrainSweep
from trainyard.config.trials import with_seed
from trainyard.planning.journal import Suggested
from trainyard.planning.trial_space import TrialSpace, is_placeholder


def sweep(**fields):
    return TrainSweep.model_validate({"dataset": "d", "grid": {"lr": [0.1, 0.2, 0.3]}, **fields})


def draws(made, lr, *, repeats=(1, 2)):
    space = TrialSpace(made, "digest")
    return [
        Suggested(search=space.seeds_key, values=with_seed(made, {"lr": lr}, repeat), params={},
                  attrs={"selection": space.selections[-1]})
        for repeat in repeats
    ]  # fmt: skip


def needed(made, events):
    """The seeds of the trials that a config needs beyond the first ones, and how many it will draw."""
    space = TrialSpace(made, "digest", events)
    further = [trial.spec.seed for name, trial in space.trials.items() if name in space.further - space.optional]
    return sorted(further), sum(map(is_placeholder, space.trials))


def test_a_config_needs_the_seeds_that_were_drawn_for_it_and_no_others():
    best = sweep(repeats=3, repeat_best=1)
    drawn = draws(best, 0.2)
    assert needed(best, []) == ([], 2)
    assert needed(best, drawn) == ([1, 2], 0)
    assert needed(sweep(), drawn) == ([], 0), "without repeat_best, what was drawn need not run"
    more = sweep(repeats=3, repeat_best=2)
    assert needed(more, drawn) == ([], 4), "another selection"
    assert needed(more, drawn + draws(more, 0.2) + draws(more, 0.3)) == ([1, 1, 2, 2], 0)
    again = sweep(repeats=5, repeat_best=1)
    assert needed(again, drawn) == ([], 2), "of each of the same best, two have run"
    assert needed(again, drawn + draws(again, 0.3, repeats=(1, 2, 3, 4))) == ([1, 2, 3, 4], 0), "unless they changed"
    assert needed(sweep(repeats=2, repeat_best=1), draws(again, 0.2)) == ([], 1)
    added = sweep(repeats=3, repeat_best=1, grid={"lr": [0.1, 0.2, 0.3, 0.4]})
    assert needed(added, drawn) == ([], 2), "from more configurations"


def test_to_draw_further_seeds_changes_the_digest_of_the_results_that_a_sweep_must_have_once():
    best = sweep(repeats=3, repeat_best=1)
    before, after = TrialSpace(best, "digest").digest, TrialSpace(best, "digest", draws(best, 0.2)).digest
    assert before == after != TrialSpace(sweep(), "digest").digest
