"""Out of GPU memory is an outcome of a trial: known to the sampler, grouped, said, and no reason to end a sweep."""

import pytest
from sweep_journals import record_attempt, session_of
from trainyard.config.load import check_config
from trainyard.config.trial_status import TrialStatus
from trainyard.packing.failure_policy import FailurePolicy, TrialFailure
from trainyard.planning.attempts import Attempt
from trainyard.planning.journal import Location, Suggested
from trainyard.planning.plan import plan_sweep
from trainyard.planning.search import OptunaStudy
from trainyard.planning.trial_space import TrialSpace
from trainyard.programs.user_environment import gpu_memory_variables
from trainyard.report.sweep_facts import list_failures
from trainyard.results.answer import answer_sweep
from trainyard.results.completeness import check_sweep
from trainyard.utils.errors import UserError, mentions_gpu_memory

TORCH = "exit code 1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size}.00 GiB. GPU 0 has a total"
ERRORS = [
    TORCH.format(size=2),
    "exit code 1: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
    "OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB",
    "exit code 1: RuntimeError: CUDA error: out of memory",
    "exit code 1: jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes",
    "exit code 1: jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 2.0GiB",
    "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:",
    "OOM when allocating tensor with shape[64,9] and type float on /job:w by allocator GPU_0_bfc [Op:Mul]",
    "RuntimeError: MPS backend out of memory (MPS allocated: 17.00 GB, other allocations: 1.00 GB)",
    "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory",
    "InternalError: Failed copying input tensor from CPU:0 to GPU:0 in order to run _EagerConst: Dst tensor is not "
    "initialized.",
    "RuntimeError: cudaMalloc retry failed: out of memory",
    "out of memory with a micro-batch of one image: use a smaller model",
]  # fmt: skip
OTHERS = [
    "exit code 137 (SIGKILL): no output",
    "exit code 1: RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes",
    "exit code 1: MemoryError: Unable to allocate 7 GiB for an array",
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory",
    "ResourceExhaustedError: OOM when allocating tensor with shape[9] by allocator mklcpu [Op:Mul]",
    "RuntimeError: GET was unable to find an engine to execute this computation",
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes on CPU",
    "grpc: RESOURCE_EXHAUSTED: Received message larger than max",
]
CONFIG = {
    "command": "train {x} {batch_size}",
    "trials": [{"batch_size": size, "x": size % 3} for size in (32, 256, 544, 800, 1024)],
    "metrics": {"pattern": "acc=(?P<acc>{number})"},
    "metric": "acc",
    "max_failed_fraction": 0.0,
}


@pytest.mark.parametrize("error", ERRORS)
def test_frameworks_say_it_in_their_own_words(error):
    assert mentions_gpu_memory(error)


@pytest.mark.parametrize("error", OTHERS)
def test_host_memory_and_other_resources_are_something_else(error):
    assert not mentions_gpu_memory(error)


def swept(folder, error_of, **options):
    """The state of a sweep in which trials failed with these errors, by batch size, and the others finished."""
    config = check_config({"sweeps": {"s": CONFIG | options}})
    state = plan_sweep(config, "s", folder).state
    with session_of(folder / "sweeps/s") as journal:
        for name, trial in state.trials.items():
            error = error_of(trial.values["batch_size"])
            end = {"status": TrialStatus.FAILED, "error": error} if error else {"metrics": {"acc": 0.5}}
            record_attempt(journal, name, metrics_digest=state.metrics_digest, **end)
    return plan_sweep(config, "s", folder).state


def above(limit):
    return lambda size: TORCH.format(size=size) if size >= limit else ""


def test_it_is_one_reason_with_the_condition_that_explains_it_and_the_sweep_has_its_tables(tmp_path):
    state = swept(tmp_path, above(544))
    check_sweep(state)
    assert "3 trials ran out of GPU memory, all with batch_size of 544 or more" in answer_sweep(state).lines
    (line,) = list_failures(state)
    assert line.startswith("3 trials failed, as ")


@pytest.mark.parametrize(
    ("failed", "line"),
    [
        ({256, 1024}, "2 trials ran out of GPU memory"),
        ({1024}, "1 trial ran out of GPU memory, with batch_size of 1024 or more"),
    ],
)  # fmt: skip
def test_a_condition_that_does_not_separate_them_is_not_said(tmp_path, failed, line):
    state = swept(tmp_path, lambda size: TORCH.format(size=size) if size in failed else "")
    assert line in answer_sweep(state).lines


@pytest.mark.parametrize("net", [{}, {"net": {"width": 8}}])
def test_values_that_belong_together_are_one_condition(tmp_path, net):
    """A list of mappings is one key of the grid: all of its values explain what one of them does."""
    sizes = [{"batch_size": size, "lr": size / 1000, **net} for size in (32, 64, 512)]
    trials = {"command": "train {args}", "trials": [], "grid": {"size": sizes, "x": [1, 2]}}
    config = check_config({"sweeps": {"s": CONFIG | trials}})
    state = plan_sweep(config, "s", tmp_path).state
    with session_of(tmp_path / "sweeps/s") as journal:
        for name, trial in state.trials.items():
            is_large = "512" in str(trial.values)
            end = {"status": TrialStatus.FAILED, "error": ERRORS[0]} if is_large else {"metrics": {"acc": 0.5}}
            record_attempt(journal, name, metrics_digest=state.metrics_digest, **end)
    lines = answer_sweep(plan_sweep(config, "s", tmp_path).state).lines
    condition = "size.batch_size of 512 or more and size.lr of 0.512 or more"
    assert f"2 trials ran out of GPU memory, all with {condition}" in lines


def test_other_errors_still_end_the_sweep_and_a_sweep_without_a_result_does(tmp_path):
    with pytest.raises(UserError, match="4 of 5 trials failed for good"):
        check_sweep(swept(tmp_path / "a", lambda size: above(544)(size) or ("exit code 1: no" if size == 32 else "")))
    with pytest.raises(UserError, match="5 of 5 trials failed for good, 5 of them"):
        check_sweep(swept(tmp_path / "b", above(0)))


def test_it_is_tried_once_more_and_stops_no_sweep():
    policy, place = FailurePolicy(retries=5), Location("", "n1", "0", 0)
    errors = [TORCH.format(size=2), TORCH.format(size=4)]
    assert [policy.record_failure(TrialFailure("a", place, error, 1.0, 1)) for error in errors] == [True, False]
    for trial in range(12):
        policy.record_failure(TrialFailure(f"t{trial}", place, ERRORS[7], 1.0, 1, {"x": trial}))
    assert policy.common_failure([place], []) is None


@pytest.mark.parametrize("method", ["tpe", "gp"])
def test_a_search_learns_where_the_memory_ends(method):
    """Of 10 further draws, few are in the half in which all trials ran out of memory."""
    search = {"method": method, "trials": 40, "values": {"x": {"low": 0.0, "high": 1.0}}, "seed": 1}
    sweep = check_config(
        {"sweeps": {"s": {"command": "t {x}", "metrics": CONFIG["metrics"], "metric": "acc", "search": search}}}
    ).sweeps["s"]
    space, drawn, ends = TrialSpace(sweep, "", []), [], {}
    study = OptunaStudy(sweep)
    for _ in range(24):
        values, params, attrs = study.draw(drawn, ends)
        drawn.append(suggestion(space, values, params, attrs))
        x = values["x"]
        end = {"outcome": TrialStatus.FINISHED, "metrics": {"acc": x}}
        if x > 0.5:
            end = {"outcome": TrialStatus.FAILED, "error": ERRORS[0]}
        ends[drawn[-1].name] = Attempt(drawn[-1].name, 1, 0.0, 1.0, **end)
    assert sum(each.trial.values["x"] > 0.5 for each in drawn[14:]) <= 6


def suggestion(space, values, params, attrs):
    return space.suggestion(Suggested(search=space.search_key, values=values, params=params, attrs=attrs))


@pytest.mark.parametrize(
    ("share", "given", "added"),
    [
        (0.25, {}, {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.225", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}),
        (0.5, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}),
        (0.5, {"TF_FORCE_GPU_ALLOW_GROWTH": "false"}, {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.45"}),
        (1.0, {}, {}),
        (0.0, {}, {}),
    ],
)
def test_a_share_of_a_gpu_limits_jax_and_tensorflow_unless_the_user_does(share, given, added):
    assert gpu_memory_variables(share, given) == added
