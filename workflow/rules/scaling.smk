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
    conda:
        "../../envs/trainyard.yaml"
    threads: yard.training_cpus
    resources:
        gpu=yard.ranks_per_node,
        nodes=yard.training_nodes,
    params:
        results=yard.training,
    message:
        "scaling {wildcards.name}: training at {wildcards.scale}"
    shell:
        "python $SCRIPTS/launch.py --scale {wildcards.scale} --config $CONFIG --study {wildcards.name} --log-file {log}"


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
    conda:
        "../../envs/trainyard.yaml"
    params:
        terms=yard.scaling_terms,
    message:
        "scaling {wildcards.name}: table"
    shell:
        "python $SCRIPTS/tables.py --config $CONFIG --kind scaling --name {wildcards.name} --log-file {log}"
