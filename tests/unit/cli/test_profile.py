"""What a Snakemake profile and the command line set for jobs, read as Snakemake and its Slurm plugin read it."""

from types import SimpleNamespace

import pytest
from snakemake.resources import Resources
from snakemake_executor_plugin_slurm.utils import set_gres_string
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra
from trainyard.cli import profile
from trainyard.cli.workflow import Workflow
from trainyard.config.trials import result_digest
from trainyard.planning.memory_request import NodeMemory
from trainyard.scaling.launch_records import Launches
from trainyard.utils.errors import UserError

HYPHENS = "nvidia_a100-sxm4-80gb"
CONFIG = {
    "datasets": {"d": {"source": "digits"}},
    "sweeps": {"one": {"dataset": "d", "grid": {"lr": [0.1]}, "slots": {"gpus_per_node": 2}}},
    "scaling": {"s": {"dataset": "d", "scales": ["1x2", "2x2"]}},
}


def parsed(*settings):
    return Resources.parse(list(settings), allow_expressions=True, defaults="full")


def yard_of(tmp_path, *defaults, executor=lambda: None, **rules):
    given = {rule: Resources.parse(settings, allow_expressions=True) for rule, settings in rules.items()}
    every = parsed("runtime=60", *defaults)
    return Workflow(CONFIG, results=tmp_path, profile=profile.Profile(every, executor, given))


def test_studies_wait_for_the_weights_of_torchvision_that_they_start_from(tmp_path):
    train = {"model": "resnet18", "pretrained": "IMAGENET1K_V1"}
    sweep = {"dataset": "d", "train": train, "grid": {"model": ["resnet18", "resnet50"], "lr": [0.1, 0.2]}}
    scaling = {"dataset": "d", "scales": ["1x1"], "train": train}
    yard = Workflow({**CONFIG, "sweeps": {"s": sweep}, "scaling": {"s": scaling}}, results=tmp_path)
    receipts = [str(tmp_path / f"weights/resnet{depth}-IMAGENET1K_V1.json") for depth in (18, 50)]
    assert yard.weights_of("sweeps")(SimpleNamespace(name="s")) == receipts
    assert yard.weights_of("scaling")(SimpleNamespace(name="s")) == receipts[:1]


def requests(yard):
    """The resources of each job that are about GPUs, and sbatch's further options."""
    scales = [SimpleNamespace(name="s", scale=scale) for scale in ("1x2", "2x2")]
    for wildcards, jobs in [(SimpleNamespace(name="one"), yard.sweep), *((each, yard.train) for each in scales)]:
        found = resources_of(jobs, wildcards)
        yield {name: found[name] for name in ("slurm_extra", "gpu", "gpu_model", "gres") if name in found}


def resources_of(jobs, wildcards):
    """What a job requests, as Snakemake evaluates it: None leaves a resource out."""
    found = {name: function(wildcards, attempt=1) for name, function in jobs.resources().items()}
    return {name: value for name, value in found.items() if value is not None}


class JobResources(dict):
    __getattr__ = dict.get


@pytest.mark.parametrize(
    ("gpu_type", "single", "several"),
    [("", " --gpus=2", " --gres=gpu:2"), ("a100_3g.20gb", " --gpus=a100_3g.20gb:2", " --gres=gpu:a100_3g.20gb:2")],
)
def test_the_plugin_requests_gpus_of_types_that_it_accepts(tmp_path, gpu_type, single, several):
    yard = yard_of(tmp_path, *([f"gpu_type={gpu_type}"] if gpu_type else []))
    lines = [set_gres_string(SimpleNamespace(resources=each)) for each in map(JobResources, requests(yard))]
    assert lines == [single, single, several]


def test_gpu_types_that_the_plugin_refuses_are_requested_in_an_option_that_it_accepts(tmp_path):
    found = [JobResources(each) for each in requests(yard_of(tmp_path, f"gpu_type={HYPHENS}"))]
    for each in found:
        validate_slurm_extra(SimpleNamespace(resources=each))
        assert set_gres_string(SimpleNamespace(resources=each)) == ""
    option = f"--gpus-per-node={HYPHENS}:2"
    assert [each["slurm_extra"] for each in found] == [option, option, f"--ntasks-per-node=1 {option}"]


@pytest.mark.parametrize("scale", ["1x2", "2x2"])
@pytest.mark.parametrize("gpu_type", ["", "a100", HYPHENS])
def test_a_script_whose_output_is_only_read_again_needs_no_gpu(tmp_path, scale, gpu_type):
    study = {"script": "train.py", "scales": ["1x2", "2x2"], "cpus_per_gpu": 4}
    defaults = parsed("runtime=60", *([f"gpu_type={gpu_type}"] if gpu_type else []))
    yard = Workflow(
        {"scaling": {"s": study}},
        results=tmp_path,
        profile=profile.Profile(defaults),
    )
    jobs, wildcards = yard.train, SimpleNamespace(name="s", scale=scale)

    def request():
        return resources_of(jobs, wildcards) | {"threads": jobs.cpus(wildcards, attempt=1)}

    assert request()["threads"] == 8
    assert request()["nodes"] == int(scale[0])
    assert request().keys() & {"gpu", "gres", "slurm_extra"}
    study = yard.config.scaling["s"]
    launches = Launches(tmp_path / "scaling/s" / scale / "out" / result_digest(study, scale, "no dataset"))
    launches.output.parent.mkdir(parents=True)
    with launches.launch(resumes=False):
        launches.output.touch()
        launches.add_end()
    assert "is read again; nothing runs" in request()["plan"]
    assert request().keys() == {"nodes", "threads", "hardware", "mem_mb", "memory", "plan"}
    assert (request()["nodes"], request()["threads"], request()["mem_mb"]) == (1, 1, 4000)


@pytest.mark.parametrize("setting", ["--nice=5 --mail-type=END", "'--nice=5 --mail-type=END'"])
def test_options_of_the_profile_join_ours(tmp_path, setting):
    found = [each.get("slurm_extra") for each in requests(yard_of(tmp_path, f"slurm_extra={setting}"))]
    own = "--nice=5 --mail-type=END"
    assert found == [own, own, f"--ntasks-per-node=1 {own}"]


def test_options_of_a_rule_that_replace_ours_must_contain_them(tmp_path):
    short = yard_of(tmp_path, train=["slurm_extra=--nice=5"])
    with pytest.raises(UserError, match=r"train: slurm_extra replaces .* add '--ntasks-per-node=1'"):
        list(requests(short))
    whole = yard_of(tmp_path, train=["slurm_extra='--nice=5 --ntasks-per-node=1'"])
    assert len(list(requests(whole))) == 3


@pytest.mark.parametrize(
    ("default", "rule", "message"),
    [
        ("gpu_type=a100:4", [], "gpu_type: 'a100:4' is not a GPU type"),
        ("qos=normal", [f"gpu_model={HYPHENS}"], "set `gpu_type` in default-resources"),
    ],
)
def test_gpu_types_that_cannot_be_requested_are_refused_before_anything_is_submitted(tmp_path, default, rule, message):
    with pytest.raises(UserError, match=message):
        yard_of(tmp_path, default, train=rule)


@pytest.mark.parametrize("name", ["slurm_partition", "slurm_extra", "gpu_type"])
def test_a_text_that_is_known_only_when_a_job_runs_is_one_clear_error(tmp_path, name):
    with pytest.raises(UserError, match=f"{name}: 'a' if attempt == 1 else 'b' is known only when a job runs"):
        list(requests(yard_of(tmp_path, f"{name}='a' if attempt == 1 else 'b'")))


def test_gpu_types_that_the_plugin_refuses_need_a_partition_if_there_is_a_partition_file(tmp_path):
    """The plugin would take the job for one without GPUs."""
    (tmp_path / "partitions.yaml").write_text("partitions: {gpu: {max_gpu: 4}, cpu: {}}")
    settings = SimpleNamespace(partition_config=tmp_path / "partitions.yaml")
    common = (tmp_path, f"gpu_type={HYPHENS}")
    with pytest.raises(UserError, match="set slurm_partition for sweep"):
        next(requests(yard_of(*common, executor=lambda: settings)))
    assert next(requests(yard_of(*common, "slurm_partition=gpu", executor=lambda: settings)))["slurm_extra"]


PARTITIONS = [
    "cpu*|up|1-0|1|8|1000|(null)|(null)",
    "gpu|up|5:00:00|1|8|9000|gpu:a100:4(S:0-1)|(null)",
    "gpu|up|5:00:00|2|8|16000+|gpu:v100:2,gpu:a100:2|(null)",
]


def test_a_walltime_that_is_set_for_a_rule_is_what_the_dry_run_counts(tmp_path):
    found = resources_of(yard_of(tmp_path, sweep=["runtime=30"]).sweep, SimpleNamespace(name="one"))
    assert found["runtime"] == 30
    assert "; 1 GPU-hours requested" in found["plan"]


def test_a_walltime_of_the_config_is_what_jobs_request(tmp_path):
    config = {**CONFIG, "sweeps": {"one": CONFIG["sweeps"]["one"] | {"walltime": "6h"}}}
    config["scaling"] = {"s": CONFIG["scaling"]["s"] | {"walltime": "90min"}, "other": CONFIG["scaling"]["s"]}
    yard = Workflow(config, results=tmp_path, profile=profile.Profile(parsed("runtime=60 * attempt")))
    assert resources_of(yard.sweep, SimpleNamespace(name="one"))["runtime"] == 360
    runtime = yard.train.resources()["runtime"]
    assert runtime(SimpleNamespace(name="s", scale="1x2"), attempt=1) == 90
    assert runtime(SimpleNamespace(name="other", scale="1x2"), attempt=2) == 120, "as the profile has it"
    planned = {each.job: each.walltime_minutes for each in yard.planned_jobs()}
    assert planned["sweep one"] == 360
    assert (planned["train s 1x2"], planned["train other 1x2"]) == (90, 60)
    set_for_all = {rule: Resources.parse(["runtime=30"], allow_expressions=True) for rule in ("sweep", "train")}
    yard = Workflow(config, results=tmp_path, profile=profile.Profile(parsed("runtime=60"), set_resources=set_for_all))
    assert resources_of(yard.sweep, SimpleNamespace(name="one"))["runtime"] == 30, "the profile's own comes first"
    assert yard.train.resources()["runtime"](SimpleNamespace(name="s", scale="1x2"), attempt=1) == 30


@pytest.fixture
def partitions(slurm):
    slurm.prints("sinfo", "\n".join(PARTITIONS))


@pytest.mark.parametrize(
    ("settings", "gpus", "memory"),
    [
        ([], 0, NodeMemory(1000, 1000)),
        ([], 1, NodeMemory()),
        (["slurm_partition=gpu"], 2, NodeMemory(16000, 4500)),
        (["slurm_partition=gpu"], 4, NodeMemory(16000, 9000)),
        (["slurm_partition=gpu", "gpu_type=a100"], 2, NodeMemory(16000, 4500)),
        (["slurm_partition=gpu", "gpu_type=a100"], 4, NodeMemory(9000, 9000)),
        (["slurm_partition=gpu", "gpu_type=v100"], 2, NodeMemory(16000, 16000)),
    ],
)
def test_memory_is_limited_by_the_nodes_that_have_the_gpus(partitions, settings, gpus, memory):
    assert profile.Profile(parsed("runtime=60", *settings), lambda: None).node_memory("train", gpus) == memory


@pytest.mark.parametrize(
    ("settings", "given", "cpus", "warning"),
    [
        (["slurm_partition=gpu"], None, 2, "; 2 CPUs per GPU may keep it waiting: 4 are enough for most"),
        (["slurm_partition=gpu", "gpu_type=v100"], None, 4, ""),
        (["slurm_partition=big"], None, 8, ""),
        (["slurm_partition=big"], 16, 16, ""),
        (["slurm_partition=gpu"], 1, 1, "; 1 CPU per GPU may keep it waiting: 4 are enough for most"),
        (["slurm_partition=cpu"], None, 1, ""),  # whose nodes have no GPUs: their shape is not known
    ],
)
def test_a_gpu_gets_the_cpus_that_its_node_has_for_it(tmp_path, slurm, settings, given, cpus, warning):
    slurm.prints("sinfo", "\n".join([*PARTITIONS, "big|up|1-0|1|128|1000|gpu:h100:8|(null)"]))
    study = {"dataset": "d", "scales": ["1x2"], **({"cpus_per_gpu": given} if given else {})}
    config, defaults = CONFIG | {"scaling": {"s": study}}, parsed("runtime=60", *settings)
    jobs = Workflow(config, results=tmp_path, profile=profile.Profile(defaults)).train
    wildcards = SimpleNamespace(name="s", scale="1x2")
    assert jobs.cpus(wildcards, 1) == 2 * cpus
    assert jobs.summary(wildcards, 1).partition("known until a scale has been trained")[2] == warning
    local = Workflow(config, results=tmp_path, profile=profile.Profile(None)).train
    assert local.cpus(wildcards, 1) == 2 * (given or 1)


def test_several_partitions_and_gpu_models_are_named(slurm):
    slurm.prints("sinfo", "a|up|5:00|1|8|1000|gpu:a100:4|(null)\nb|up|5:00|1|8|1000|gpu:h100:2|(null)\n")
    found = profile.Profile(parsed("runtime=60", "slurm_partition=a,b"), lambda: None)
    either = "partitions: a or b, nodes: 1, GPUs per node:"
    assert found.hardware("sweep", 1, 2) == f"{either} 2 a100 or h100"
    assert found.hardware("sweep", 1, 4) == f"{either} 4", "only one model has so many"
    assert found.hardware("sweep", 1, 0) == f"{either} none"
    assert found.gpu_models("sweep", 2) == ("a100", "h100")
    assert profile.Profile(parsed("runtime=60", "slurm_partition=a"), lambda: None).hardware("train", 1, 2) == (
        "nodes: 1, GPUs per node: 2"
    )


def test_the_partition_of_a_rule_comes_before_that_of_all(partitions):
    rules = {"train": Resources.parse(["slurm_partition=gpu"], allow_expressions=True)}
    found = profile.Profile(parsed("runtime=60", "slurm_partition=cpu"), lambda: None, rules)
    assert (found.limit_minutes("train", 2), found.limit_minutes("sweep", 2)) == (300, 1440)


def test_a_walltime_above_the_limit_of_a_partition_is_said_of_every_job(tmp_path, partitions):
    """Slurm would accept the job and never start it."""
    ten_hours = {rule: ["runtime=600"] for rule in ("stage", "sweep", "train")}
    yard = yard_of(tmp_path, "slurm_partition=gpu", **ten_hours)
    for jobs in (yard.stage, yard.sweep, yard.train):
        summary = jobs.summary(SimpleNamespace(name="one" if jobs is yard.sweep else "s", scale="1x2"), 1)
        assert "10 h 0 min of walltime, but a job may take 5 h" in summary
    default = yard_of(tmp_path, "slurm_partition=gpu")
    assert "above the limit" not in default.sweep.summary(SimpleNamespace(name="one"), 1)


@pytest.mark.parametrize("program", [{"function": "json:dumps"}, {"command": "true {x}"}])
def test_a_limit_that_leaves_no_time_to_train_is_one_error(tmp_path, slurm, program):
    slurm.prints("sinfo", "gpu*|up|1:00|1|8|9000|gpu:a100:4|(null)")
    sweep = {**program, "grid": {"x": [1]}}
    yard = Workflow({"sweeps": {"s": sweep}}, results=tmp_path, profile=profile.Profile(parsed("runtime=60")))
    assert "1 of 1 trials pending" in yard.sweep.summary(SimpleNamespace(name="s"), 1)
    with pytest.raises(UserError, match=r"sweeps\.s: a job may take 1 min 0 s at most, but .* need 2 min"):
        yard.check(dry_run=True)


PLAIN = "{gpu: {max_runtime: 300, max_gpu: 4}, cpu: {max_runtime: 1440}}"
TYPED = """{
  a40: {max_runtime: 300, max_gpu: 4, available_gpu_models: [a40]},
  v100: {max_runtime: 600, max_gpu: 2, available_gpu_models: [v100]},
  cpu: {max_runtime: 1440},
}"""


@pytest.fixture
def partition_file(tmp_path, slurm):
    """A function that writes a partition file, and returns the executor's settings that name it."""

    def write(partitions):
        (tmp_path / "partitions.yaml").write_text(f"partitions: {partitions}")
        return SimpleNamespace(partition_config=tmp_path / "partitions.yaml")

    return write


@pytest.mark.parametrize(
    ("partitions", "slots", "gpu_type", "minutes"),
    [
        (PLAIN, {"gpus_per_node": 1}, "", 300),
        (PLAIN, {"gpus_per_node": 1}, "a100", 300),
        (PLAIN, {"gpus_per_node": 0}, "", 1440),
        (TYPED, {"gpus_per_node": 2}, "a40", 300),
        (TYPED, {"gpus_per_node": 0}, "a40", 1440),
        (TYPED, {"gpus_per_node": 2}, "", 600),
        pytest.param(TYPED, {"gpus_per_node": 4}, "", 300, id="more GPUs than some nodes have"),
        pytest.param(TYPED, "auto", "a40", 300, id="up to more GPUs than any node has"),
        pytest.param(TYPED, {"gpus_per_node": 2}, "h100", 1440, id="none of the type"),
    ],
)
def test_the_walltime_of_a_sweep_is_limited_by_the_partitions_with_its_gpus(
    tmp_path, partition_file, partitions, slots, gpu_type, minutes
):
    """A longer one would fit no partition that has them, and the plugin would take Slurm's default partition."""
    settings = partition_file(partitions)
    defaults = parsed("runtime=60", *([f"gpu_type={gpu_type}"] if gpu_type else []))
    yard = Workflow(
        {"sweeps": {"s": {"command": "true {x}", "grid": {"x": [1]}, "slots": slots}}},
        results=tmp_path,
        profile=profile.Profile(defaults, lambda: settings),
    )
    assert yard.sweep.limit_minutes("s") == minutes


def test_the_walltime_of_a_scale_is_compared_with_the_partitions_with_its_gpus(tmp_path, partition_file):
    settings = partition_file(PLAIN)
    yard = yard_of(tmp_path, executor=lambda: settings, train=["runtime=600"], stage=["runtime=600"])
    assert "a job may take 5 h 0 min at most" in yard.train.summary(SimpleNamespace(name="s", scale="1x2"), 1)
    assert yard.stage.summary(SimpleNamespace(name="d"), 1) == "dataset d: staging", (
        "without GPUs, any partition will do"
    )


@pytest.mark.parametrize(("is_main", "minutes"), [(True, 50), (False, 1440)])
def test_limits_hold_for_the_jobs_of_a_snakemake_that_runs_in_a_job_itself(
    tmp_path, partitions, slurm, monkeypatch, is_main, minutes
):
    """A user may start it in one; the Snakemake in a submitted job submits none, and asks for no limits."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    slurm.prints("scontrol", "AccountingStorageEnforce = limits\n", of="show config")
    slurm.prints("scontrol", "", of="show partitions")
    slurm.prints("sacctmgr", "")
    slurm.prints("sacctmgr", "fifty|||50:00||||||||\n", of="show qos")
    every = parsed("runtime=60", "qos=fifty")
    yard = Workflow(CONFIG, results=tmp_path, profile=profile.Profile(every, is_main=is_main))
    assert yard.sweep.limit_minutes("one") == minutes


@pytest.mark.parametrize(
    ("setting", "mb", "basis"),
    [("qos=normal", 14000, "assuming 5.8 GB per slot"), ("mem_mb=9000", 9000, "as set"), ("mem='7GB'", 7000, "as set"),
     ("mem_mb=attempt*500", 500, "as set")],
)  # fmt: skip
def test_memory_that_is_set_for_all_jobs_replaces_the_estimate(tmp_path, setting, mb, basis):
    yard, wildcards = yard_of(tmp_path, setting), SimpleNamespace(name="one")
    context = {"input": [], "attempt": 1, "threads": 1, "rulename": "sweep", "async_run": None}
    resources = Resources.from_mapping(yard.sweep.resources())
    assert resources["mem_mb"].evaluate(wildcards, **context).value == mb
    assert resources["memory"].evaluate(wildcards, **context).value == basis


def executor_of(**settings):
    return SimpleNamespace(status_command="sacct", **settings)


def test_an_error_of_the_query_of_the_accounting_is_raised_where_its_answer_is_used(monkeypatch):
    def fail():
        raise ValueError("a bug")

    monkeypatch.setattr(profile, "keeps_accounting", fail)
    site = profile.Profile(parsed("runtime=60"), executor_of)
    site.ask_accounting()
    with pytest.raises(ValueError, match="a bug"):
        site.follow_jobs()


@pytest.mark.parametrize(
    ("accounting", "age", "defaults", "expected"),
    [
        (True, "10 sec", [], "sacct"),
        (False, "300 sec", [], "squeue"),
        (False, "10 sec", [], "forgets a job 10 sec after its end"),
        (False, "300 sec", ["slurm_account=lab"], "remove it from the profile"),
    ],
)
def test_without_accounting_jobs_are_followed_with_squeue(slurm, accounting, age, defaults, expected):
    slurm.prints("scontrol", f"MinJobAge = {age}\n")
    if accounting:
        slurm.runs("sacct", "sleep 0.3")  # it is waited for
    settings = executor_of()
    site = profile.Profile(parsed("runtime=60", *defaults), lambda: settings)
    site.ask_accounting()
    if " " in expected:
        with pytest.raises(UserError, match=expected):
            site.follow_jobs()
    else:
        site.follow_jobs()
        assert settings.status_command == expected
