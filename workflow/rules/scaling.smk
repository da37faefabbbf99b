rule scaling:
    "Run all scaling studies."
    input:
        expand("results/scaling/{name}/scaling.csv", name=yard.config.scaling),
    message:
        "all scaling studies are complete"


rule train:
    "Train at one scale of a study."
    input:
        yard.dataset_of("scaling"),
        yard.weights_of("scaling"),
    output:
        "results/scaling/{name}/{scale}/summary.json",
        "results/scaling/{name}/{scale}/history.csv",
    log:
        "results/logs/train/{name}-{scale}.log",
    benchmark:
        "results/benchmarks/train/{name}-{scale}.tsv"
    wildcard_constraints:
        scale=r"1x\d+(/repeat-\d+)?",
    conda:
        "../../envs/trainyard.yaml"
    envmodules:
        *yard.config.env_modules,
    threads: yard.train.cpus
    resources:
        gpu=yard.train.gpus,
        gpu_model=yard.train.gpu_model,
        nodes=yard.train.nodes,
        mem_mb=yard.train.mem_mb,
        memory=yard.train.memory,
        slurm_extra=yard.train.slurm_extra,
        hardware=yard.train.hardware,
        plan=yard.train.summary,
    params:
        program=yard.program("train"),
        results=yard.train.digest,
    message:
        yard.message("{resources.plan}")
    shell:
        "{params.program} --scale {wildcards.scale} --study {wildcards.name} --log-file {log}"


# The executor wraps a job on one node in `srun`. With `mpi`, it leaves that to the command: for jobs on several nodes.
# To read the saved output of a script again, one node is enough.
use rule train as train_on_nodes with:
    wildcard_constraints:
        scale=r"(?!1x)\d+x\d+(/repeat-\d+)?",
    resources:
        mem_mb=yard.train.mem_mb,
        memory=yard.train.memory,
        hardware=yard.train.hardware,
        plan=yard.train.summary,
        gpu=yard.train.gpus,
        gpu_model=yard.train.gpu_model,
        nodes=yard.train.nodes,
        mpi=yard.train.if_on_nodes("srun"),
        tasks=yard.train.if_on_nodes(yard.train.nodes),
        gres=yard.train.if_on_nodes(yard.train.gres),
        tasks_per_gpu=yard.train.if_on_nodes(0),
        slurm_extra=yard.train.slurm_extra,
