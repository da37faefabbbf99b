rule trees:
    input:
        expand("results/trees/{name}/trees.csv", name=yard.config.trees),


rule fit_trees:
    input:
        yard.dataset_of("trees"),
    output:
        "results/trees/{name}/trees.csv",
    log:
        "results/logs/trees/{name}.log",
    conda:
        "../../envs/trainyard.yaml"
    threads: yard.tree_cpus
    resources:
        mem_mb=yard.tree_mem_mb,
        memory=yard.tree_memory,
        hardware=yard.cpu_hardware,
    params:
        study=yard.tree_study,
    message:
        yard.message("trees {wildcards.name}: fitting")
    shell:
        'python "$SCRIPTS/fit_trees.py" --config "$CONFIG" --study {wildcards.name} --log-file {log}'
