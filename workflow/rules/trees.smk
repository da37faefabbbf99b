rule trees:
    "Fit the models of all tree studies."
    input:
        expand("results/trees/{name}/trees.csv", name=yard.config.trees),
    message:
        "all tree models are fitted"


rule fit_trees:
    "Fit the models of a tree study."
    input:
        yard.dataset_of("trees"),
    output:
        "results/trees/{name}/trees.csv",
    log:
        "results/logs/trees/{name}.log",
    benchmark:
        "results/benchmarks/trees/{name}.tsv"
    conda:
        "../../envs/trainyard.yaml"
    envmodules:
        *yard.config.env_modules,
    threads: yard.fit_trees.cpus
    resources:
        **yard.fit_trees.resources(),
    params:
        program=yard.program("fit_trees"),
        study=yard.fit_trees.digest,
    message:
        yard.message("{resources.plan}")
    shell:
        "{params.program} --study {wildcards.name} --log-file {log}"
