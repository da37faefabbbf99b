rule plan:
    log:
        "results/logs/plan.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    params:
        options=yard.plan_options,
    message:
        "planning"
    shell:
        "python $SCRIPTS/plan.py --config $CONFIG {params.options} --log-file {log}"


rule tables:
    input:
        rules.scaling.input,
        expand("results/tables/sweeps/{name}.html", name=yard.config.sweeps),
        expand("results/tables/scaling/{name}.html", name=yard.config.scaling),
        expand("results/tables/trees/{name}.html", name=yard.config.trees),


rule plots:
    input:
        yard.plots(),


rule sweep_tables:
    input:
        rules.sweep.output,
    output:
        "results/sweeps/{name}/strategies.csv",
        "results/sweeps/{name}/jobs.csv",
        report(
            "results/tables/sweeps/{name}.html",
            category="Sweeps",
            subcategory="{name}",
            labels={"study": "{name}", "content": "table of trials"},
            caption="../report/trials.rst",
        ),
    log:
        "results/logs/tables/sweeps-{name}.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    resources:
        machine=1,
    params:
        forms=yard.table_forms,
    shell:
        "python $SCRIPTS/tables.py --config $CONFIG --kind sweeps --name {wildcards.name} --log-file {log}"


rule trees_page:
    input:
        "results/trees/{name}/trees.csv",
    output:
        report(
            "results/tables/trees/{name}.html",
            category="Tree models",
            subcategory="{name}",
            labels={"study": "{name}", "content": "table"},
            caption="../report/trees.rst",
        ),
    log:
        "results/logs/tables/trees-{name}.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    resources:
        machine=1,
    params:
        forms=yard.table_forms,
    shell:
        "python $SCRIPTS/tables.py --config $CONFIG --kind trees --name {wildcards.name} --log-file {log}"


rule plot_data:
    input:
        rules.stage.output,
    output:
        [
            report(
                f"results/plots/data/{{name}}/{picture}.svg",
                category="Data",
                subcategory="{name}",
                labels={"dataset": "{name}", "content": content},
                caption=f"../report/data-{picture}.rst",
            )
            for picture, content in yard.pictures("data").items()
        ],
        expand(
            "results/plots/data/{{name}}/{picture}.png", picture=yard.pictures("data")
        ),
    log:
        "results/logs/plots/data-{name}.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    resources:
        machine=1,
    message:
        "dataset {wildcards.name}: plots"
    shell:
        "python $SCRIPTS/plots.py --config $CONFIG --kind data --name {wildcards.name} --log-file {log}"


rule plot_sweep:
    input:
        rules.sweep.output,
        rules.sweep_tables.output,
    output:
        [
            report(
                f"results/plots/sweeps/{{name}}/{picture}.svg",
                category="Sweeps",
                subcategory="{name}",
                labels={"study": "{name}", "content": content},
                caption=f"../report/sweeps-{picture}.rst",
            )
            for picture, content in yard.pictures("sweeps").items()
        ],
        expand(
            "results/plots/sweeps/{{name}}/{picture}.png",
            picture=yard.pictures("sweeps"),
        ),
    log:
        "results/logs/plots/sweeps-{name}.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    resources:
        machine=1,
    message:
        "sweep {wildcards.name}: plots"
    shell:
        "python $SCRIPTS/plots.py --config $CONFIG --kind sweeps --name {wildcards.name} --log-file {log}"


rule plot_scaling:
    input:
        rules.scaling_table.output,
    output:
        [
            report(
                f"results/plots/scaling/{{name}}/{picture}.svg",
                category="Scaling",
                subcategory="{name}",
                labels={"study": "{name}", "content": content},
                caption=f"../report/scaling-{picture}.rst",
            )
            for picture, content in yard.pictures("scaling").items()
        ],
        expand(
            "results/plots/scaling/{{name}}/{picture}.png",
            picture=yard.pictures("scaling"),
        ),
    log:
        "results/logs/plots/scaling-{name}.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    resources:
        machine=1,
    message:
        "scaling {wildcards.name}: plots"
    shell:
        "python $SCRIPTS/plots.py --config $CONFIG --kind scaling --name {wildcards.name} --log-file {log}"


rule plot_trees:
    input:
        rules.fit_trees.output,
    output:
        [
            report(
                f"results/plots/trees/{{name}}/{picture}.svg",
                category="Tree models",
                subcategory="{name}",
                labels={"study": "{name}", "content": content},
                caption=f"../report/trees-{picture}.rst",
            )
            for picture, content in yard.pictures("trees").items()
        ],
        expand(
            "results/plots/trees/{{name}}/{picture}.png",
            picture=yard.pictures("trees"),
        ),
    log:
        "results/logs/plots/trees-{name}.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    resources:
        machine=1,
    message:
        "trees {wildcards.name}: plots"
    shell:
        "python $SCRIPTS/plots.py --config $CONFIG --kind trees --name {wildcards.name} --log-file {log}"
