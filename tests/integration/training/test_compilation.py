"""The step under torch.compile: what is compiled, for which shapes, and what is released."""

from functools import partial

import pytest
import torch
from loops import LEARNER, SPEC, assert_close, assert_equal_states, changed, numbers, start, train
from trainyard.training.forward_pass import ForwardPass, compile_step, release_compiled_code
from trainyard.training.process_group import Group
from trainyard.training.untimed_steps import warm_up


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that torch.compile captures, and runs as they are: their inputs, and their operations."""
    found = []

    def keep(graph, inputs):
        found.append((inputs, [node.target for node in graph.graph.nodes if node.op == "call_function"]))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=keep))
    yield found
    release_compiled_code()


@pytest.fixture
def traced(monkeypatch):
    """Within a test, torch.compile traces forward and backward pass, but generates no kernels."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    yield
    release_compiled_code()


def sizes(graphs):
    """Images in the batch of each graph, whose first input is a batch."""
    return [next(each.shape[0] for each in inputs if each.dtype == torch.uint8) for inputs, _ in graphs]


@pytest.mark.slow
def test_a_training_with_the_compilers_kernels_has_the_same_metrics(data, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)  # more are threads that stay
    spec = changed(LEARNER, epochs=1)
    compiled = start(changed(spec, compile=True), data)
    assert warm_up(compiled).seconds > 0
    assert compiled.module is not compiled.model
    assert_close([numbers(row) for row in compiled.epochs()], train(spec, data)[0])


def test_normalization_model_and_loss_are_one_piece(data, graphs):
    whole, _ = train(SPEC, data)
    assert_close(train(changed(SPEC, compile=True), data)[0], whole)
    assert len(graphs) == 3, "one graph for all steps; two for validation, whose last batch is smaller"
    names = [getattr(target, "__name__", str(target)) for target in graphs[0][1]]
    assert "truediv" in names
    assert "cross_entropy" in names


@pytest.mark.parametrize("values", [{}, {"ema_decay": 0.5}])
def test_blocks_are_compiled_each_by_itself_and_share_their_code(data, graphs, values):
    spec = changed(SPEC, model_args={"blocks": 12, "width": 4}, epochs=2, **values)
    whole, weights = train(spec, data)
    graphs.clear()
    rows, compiled = train(changed(spec, compile="blocks"), data)
    assert_close(rows, whole)
    assert compiled.keys() == weights.keys()
    sizes = {next(each.shape[0] for each in inputs if each.ndim == 4 and each.shape[1] == 4) for inputs, _ in graphs}
    assert len(graphs) == 3, f"for training, validation and its last batch: {sizes}"


def test_a_model_without_blocks_is_compiled_as_a_whole(data, graphs):
    whole, _ = train(LEARNER, data)
    graphs.clear()
    assert_close(train(changed(LEARNER, compile="blocks"), data)[0], whole)
    assert len(graphs) == 3


def test_validation_is_compiled_without_own_metrics(data, graphs):
    spec = changed(SPEC, epochs=2, metrics=["top5_accuracy"], ema_decay=0.5)
    whole, _ = train(spec, data)
    assert_close(train(changed(spec, compile=True), data)[0], whole)
    validation = graphs[1:]
    assert len(validation) == 2, "for whole batches and for the last one"
    names = [{getattr(target, "__name__", str(target)) for target in targets} for _, targets in validation]
    assert all("truediv" in each and not {"cross_entropy", "topk"} & each for each in names)


def test_uneven_micro_batches_have_static_shapes(data, graphs):
    """14 images in four micro-batches: two of 4, then two of 3."""
    spec = changed(LEARNER, batch_size=14)
    training = start(changed(spec, compile=True), data)
    training.halve_micro_batch()
    training.halve_micro_batch()
    warm_up(training)
    rows = [numbers(row) for row in training.epochs()]
    assert sizes(graphs) == [4, 3, 4, 3]
    assert all(type(size) is int for inputs, _ in graphs for each in inputs for size in each.shape)
    assert_close(rows, train(spec, data)[0])


@pytest.mark.parametrize("values", [{"compile": True}, {"compile": "blocks"}, {"compile": True, "ema_decay": 0.5}])
def test_the_warm_up_compiles_all_that_the_training_needs(data, graphs, values):
    """The first epoch would count it as training, and with it the costs and the speedup of a scale."""
    spec = changed(SPEC, batch_size=14, model_args={"blocks": 3, "width": 4}, **values)
    training, again = start(spec, data), start(spec, data)
    for each in (training, again):
        each.halve_micro_batch()
        each.halve_micro_batch()
    graphs.clear()
    warm_up(training)
    assert len(graphs) == 4, "micro-batches of 4 and 3 images, in training and in validation"
    rows = [numbers(row) for row in training.epochs()]
    assert len(graphs) == 4
    assert_close(rows, [numbers(row) for row in again.epochs()])


@pytest.fixture
def compiled(monkeypatch):
    """The options with which torch.compile was called, which compiles nothing."""
    given = []
    monkeypatch.setattr(torch, "compile", lambda step, **options: given.append(options) or step)
    return given


def test_cuda_graphs_are_for_steps_of_one_micro_batch_on_one_gpu(data, compiled, monkeypatch):
    """Their results, gradients included, are overwritten by the next call."""
    monkeypatch.setattr(Group, "wrap", lambda self, model, **options: model)
    training = start(changed(SPEC, compile=True, precision="fp32"), data)
    for world_size, accumulation, mode in ((1, 1, "reduce-overhead"), (1, 2, "default"), (2, 1, "default")):
        group = Group(0, 0, world_size, torch.device("cuda", 0))
        parts = (training.module, training.spec, data, group, training.objective)
        ForwardPass(*parts, channels_last=False, ddp={}).wrap(accumulation=accumulation)
        assert compiled[-2:] == [{"mode": mode, "dynamic": False}, {"dynamic": False}], "steps, and validation"


def test_each_replay_of_cuda_graphs_begins_a_step(compiled, monkeypatch):
    """Without the mark, torch guesses from pending backward passes which results are still needed."""
    calls = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: calls.append("begin"))
    for cuda_graphs in (True, False):
        step = compile_step(lambda: calls.append("step"), cuda_graphs=cuda_graphs)
        step()
        step()
    assert calls == ["begin", "step", "begin", "step", "step", "step"]


@pytest.mark.parametrize(("part", "values"), [(True, {"precision": "bf16"}), ("blocks", {})])
def test_recomputed_activations_are_compiled(data, traced, part, values):
    """And update the running statistics of batch normalization once."""
    spec = changed(SPEC, model_args={"blocks": 3, "width": 4}, epochs=1, **values)
    whole, state = train(spec, data)
    rows, recomputed = train(changed(spec, compile=part, activation_checkpointing=True), data)
    assert_close(rows, whole)
    assert_equal_states(*({k: v for k, v in each.items() if "tracked" in k} for each in (state, recomputed)))
    for name, value in state.items():
        assert torch.allclose(recomputed[name].double(), value.double(), atol=1e-3), name


def test_every_model_of_a_process_is_compiled(data, graphs):
    """torch.compile stops at the ninth model of one class if the code of the others is kept."""
    for width in range(1, 11):
        graphs.clear()
        train(changed(LEARNER, model_args={"width": width}, epochs=1, compile=True), data)
        assert len(graphs) == 3, f"model {width}"
