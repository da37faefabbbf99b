rule trees:
    input:
        expand("results/trees/{name}/trees.csv", name=yard.config.trees),


rule fit_trees:
    input:
        yard.dataset_of("trees"),
    output:
        "results/trees/{name}/trees.csv",
    params:
        study=yard.tree_study,
    conda:
        "../../envs/trainyard.yaml"
    log:
        "results/logs/trees/{name}.log",
    threads: yard.tree_cpus
    message:
        "trees {wildcards.name}: fitting"
    shell:
        "python scripts/trees.py --config $CONFIG --study {wildcards.name} --log-file {log}"
