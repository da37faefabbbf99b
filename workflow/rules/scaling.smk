rule scaling:
    input:
        expand("results/scaling/{name}/scaling.csv", name=yard.config.scaling),


rule train:
    input:
        yard.dataset_of("scaling"),
    output:
        "results/scaling/{name}/{scale}/summary.json",
        "results/scaling/{name}/{scale}/history.csv",
    log:
        "results/logs/train/{name}-{scale}.log",
    wildcard_constraints:
        scale=r"1x\d+(/repeat-\d+)?",
    conda:
        "../../envs/trainyard.yaml"
    threads: yard.training_cpus
    resources:
        gpu=yard.ranks_per_node,
        gpu_model=yard.gpu_model,
        nodes=yard.training_nodes,
        hardware=yard.training_hardware,
        plan=yard.training_summary,
    params:
        results=yard.training,
    message:
        yard.message("{resources.plan}")
    shell:
        "python $SCRIPTS/train.py --scale {wildcards.scale} --config $CONFIG --study {wildcards.name} --log-file {log}"


# Slurm wraps a job of one node in an srun of its own; a job of several nodes is told by `mpi` to leave that to us.
use rule train as train_on_nodes with:
    wildcard_constraints:
        scale=r"(?!1x)\d+x\d+(/repeat-\d+)?",
    resources:
        hardware=yard.training_hardware,
        plan=yard.training_summary,
        mpi="srun",
        nodes=yard.training_nodes,
        tasks=yard.training_nodes,
        gres=yard.training_gres,
        tasks_per_gpu=0,
        slurm_extra="--ntasks-per-node=1",


rule scaling_table:
    input:
        yard.summaries,
    output:
        "results/scaling/{name}/scaling.csv",
        report(
            "results/tables/scaling/{name}.html",
            category="Scaling",
            subcategory="{name}",
            labels={"study": "{name}", "content": "table"},
            caption="../report/scaling-table.rst",
        ),
    log:
        "results/logs/tables/scaling-{name}.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    resources:
        machine=1,
    params:
        terms=yard.scaling_terms,
        forms=yard.table_forms,
    message:
        "scaling {wildcards.name}: table"
    shell:
        "python $SCRIPTS/tables.py --config $CONFIG --kind scaling --name {wildcards.name} --log-file {log}"
