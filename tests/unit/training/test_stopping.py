"""A training that is told to stop does so soon, whatever it is doing, and loses nothing."""

import time

import pytest
from loops import SPEC, assert_equal_states, changed, numbers, start, train
from trainyard.cluster.stop_request import StopRequest
from trainyard.training import step_sync
from trainyard.training.checkpoints import CheckpointStore
from trainyard.training.trainer import Diverged, TrainingInterrupted
from trainyard.training.untimed_steps import warm_up


@pytest.fixture
def behind(monkeypatch):
    """Lets the host of a training know the flags of a step eight steps later, as with a fast GPU."""
    monkeypatch.setattr(step_sync, "LAG_SECONDS", 1e9)

    def let_lag(training):
        training.flags.max_lag = step_sync.MAX_LAG
        return training

    return let_lag


def after_forward(training, act):
    """Call `act` in each forward pass, with the number of the epoch and whether it trains."""
    training.module.register_forward_hook(
        lambda module, images, output: act(len(training.history) + 1, module.training, output)
    )


def test_a_stop_is_seen_in_epochs_that_are_shorter_than_the_lag(data, behind, tmp_path):
    """At the end of the epoch, before its validation. An epoch has four steps."""
    validated = []
    training = behind(start(SPEC, data, store=CheckpointStore(tmp_path)))

    def act(epoch, trains, output):
        if epoch == 2 and trains:
            training.deadline = 0.0
        if epoch == 2 and not trains:
            validated.append(epoch)

    after_forward(training, act)
    with pytest.raises(TrainingInterrupted, match="before the end of the walltime, in epoch 2 of 4, after step 4 of 4"):
        list(training.epochs())
    assert not validated
    resumed, state = train(SPEC, data, store=CheckpointStore(tmp_path))
    whole, same = train(SPEC, data)
    assert resumed == whole
    assert_equal_states(state, same)


def test_a_single_rank_that_is_told_to_stop_takes_no_further_step(data, behind, tmp_path):
    """Not even if the host has launched the forward pass already: the steps of large batches take long."""
    stop_request = StopRequest()
    spec = changed(SPEC, batch_size=4, accumulation=4)
    training = behind(start(spec, data, store=CheckpointStore(tmp_path), stop_request=stop_request))
    training.state.optimizer.register_step_post_hook(lambda *_: stop_request.make())
    with pytest.raises(TrainingInterrupted, match="stopped by a signal, in epoch 1 of 4, after step 1 of 4"):
        list(training.epochs())
    assert_equal_states(train(spec, data, store=CheckpointStore(tmp_path))[1], train(spec, data)[1])


@pytest.mark.parametrize("fails", ["forward", "backward"])
def test_a_bad_loss_before_a_lack_of_memory_is_not_forgotten(data, behind, fails):
    """The host has not read the flags of its step yet when memory runs out."""
    steps = []
    training = behind(start(changed(SPEC, batch_size=4, epochs=1), data))

    def run_out(*_):
        raise RuntimeError("CUDA out of memory")

    def act(epoch, trains, output):
        steps.append(1)
        if len(steps) == 5 and fails == "forward":
            run_out()
        if len(steps) == 5:
            output.register_hook(run_out)
        return output * float("nan") if len(steps) == 4 else output

    after_forward(training, act)
    with pytest.raises(Diverged, match="step 4 of 17"):
        list(training.epochs())


def test_a_bad_loss_after_the_request_to_stop_is_not_saved(data, behind, tmp_path):
    """The host has launched these steps already when it reads the request."""
    steps = []
    spec = changed(SPEC, batch_size=4, epochs=1)
    training = behind(start(spec, data, store=CheckpointStore(tmp_path)))

    def act(epoch, trains, output):
        steps.append(1)
        if len(steps) == 3:
            training.deadline = 0.0
        return output * float("nan") if len(steps) == 5 else output

    after_forward(training, act)
    with pytest.raises(Diverged, match="step 5 of 17"):
        list(training.epochs())
    assert CheckpointStore(tmp_path).latest() is None


@pytest.mark.parametrize("by", ["a signal", "its deadline"])
def test_a_training_stops_within_its_validation(data, tmp_path, by):
    """Of several batches; the next run validates again, and ends bit-identical."""
    stop_request, validated = StopRequest(), []
    store = CheckpointStore(tmp_path)
    training = start(SPEC, data, store=store, stop_request=stop_request)

    def act(epoch, trains, output):
        if epoch == 2 and not trains:
            validated.append(len(output))
            if by == "a signal":
                stop_request.make()
            training.deadline = time.time() if by == "its deadline" else training.deadline

    after_forward(training, act)
    with pytest.raises(TrainingInterrupted, match="in epoch 2 of 4, after step 4 of 4"):
        list(training.epochs())
    assert validated == [16], "of 23 images"
    assert (len(store.latest()["history"]), store.latest()["progress"]["step"]) == (1, 4)
    resumed, state = train(SPEC, data, store=store)
    whole, same = train(SPEC, data)
    assert resumed == whole
    assert_equal_states(state, same)


def test_a_run_that_has_only_to_validate_does_so_after_its_deadline(data, tmp_path):
    """Otherwise, runs with too little time would never get further."""
    store = CheckpointStore(tmp_path)
    training = start(SPEC, data, store=store)

    def act(optimizer, *_):
        if training.state.progress.step == 2:  # in the third step
            training.deadline = 0.0

    training.state.optimizer.register_step_post_hook(act)
    with pytest.raises(TrainingInterrupted, match="after step 4 of 4"):
        list(training.epochs())
    late = start(SPEC, data, store=store, deadline=time.time())
    assert numbers(next(late.epochs())) == train(SPEC, data, epochs=1)[0][0]


def test_a_stop_request_in_the_warm_up_ends_it(data):
    stop_request = StopRequest()
    training = start(SPEC, data, stop_request=stop_request)
    after_forward(training, lambda epoch, trains, output: stop_request.make())
    with pytest.raises(TrainingInterrupted, match="stopped by a signal, in the warm-up"):
        warm_up(training)
