# Per kind of study: its name in messages and in the report, and the inputs of its tables and plots.
NOUNS = {"data": "dataset", "sweeps": "sweep", "scaling": "scaling"}
TABLE_INPUTS = {
    "sweeps": rules.sweep.output,
    "scaling": project.summaries,
}
PLOT_INPUTS = {
    "data": rules.stage.output,
    "sweeps": [rules.sweep.output, "results/sweeps/{name}/strategies.csv"],
    "scaling": "results/scaling/{name}/scaling.csv",
}


rule tables:
    "Make all tables."
    input:
        rules.scaling.input,
        expand("results/tables/sweeps/{name}.html", name=project.config.sweeps),
        expand("results/tables/scaling/{name}.html", name=project.config.scaling),
    message:
        "all tables are written"


rule plots:
    "Make all plots."
    input:
        project.plots(),
    message:
        "all plots are drawn"


# `shell` is formatted when a job runs, after the loop: it must take the kind from `params`.
for kind, made_from in TABLE_INPUTS.items():

    rule:
        "Make the tables of a study."
        name:
            f"table_{kind}"
        input:
            made_from,
            project.renewal(
                f"results/{kind}/{{name}}/{project.derived_tables[kind][-1]}.csv",
                project.table_terms(kind),
            ),
        output:
            expand(
                "results/{kind}/{{name}}/{table}.csv",
                kind=kind,
                table=project.derived_tables[kind],
            ),
        log:
            f"results/logs/tables/{kind}-{{name}}.log",
        localrule: True
        conda:
            "../../envs/trainyard.yaml"
        envmodules:
            *project.config.env_modules,
        resources:
            **project.here,
        params:
            program=project.program("tables"),
            kind=kind,
            terms=project.table_terms(kind),
        message:
            f"{NOUNS[kind]} {{wildcards.name}}: table"
        shell:
            "{params.program} --kind {params.kind} --name {wildcards.name} --log-file {log}"


for kind, made_from in PLOT_INPUTS.items():
    for plots in project.plot_rules(kind):

        rule:
            "Plot the results of a study, or a dataset, and write the page of a study."
            name:
                plots.name
            input:
                made_from,
            output:
                [
                    report(
                        f"results/plots/{kind}/{{name}}/{plot}.svg",
                        category=project.categories[kind],
                        subcategory="{name}",
                        labels={
                            "dataset" if kind == "data" else "study": "{name}",
                            "content": content,
                        },
                        caption=f"../report/{kind}-{plot}.rst",
                    )
                    for plot, content in plots.labels.items()
                ],
                expand(
                    "results/plots/{kind}/{{name}}/{plot}.png",
                    kind=kind,
                    plot=plots.labels,
                ),
                [
                    report(
                        f"results/tables/{study}/{{name}}.html",
                        category=project.categories[study],
                        subcategory="{name}",
                        labels={
                            "study": "{name}",
                            "content": project.labels(study)["table"],
                        },
                        caption=f"../report/{study}-table.rst",
                    )
                    for study in TABLE_INPUTS
                    if study == kind
                ],
            log:
                f"results/logs/plots/{kind}-{{name}}.log",
            wildcard_constraints:
                name=plots.names,
            localrule: True
            conda:
                "../../envs/trainyard.yaml"
            envmodules:
                *project.config.env_modules,
            resources:
                **project.here,
            params:
                program=project.program("plots"),
                kind=kind,
                conclusion=project.conclusion(kind),
            message:
                f"{NOUNS[kind]} {{wildcards.name}}: plots"
            shell:
                "{params.program} --kind {params.kind} --name {wildcards.name} --log-file {log}"


# workflow/report/workflow.rst includes it.
rule overview:
    "Write the first page of the report."
    input:
        rules.tables.input,
        rules.plots.input,
        project.renewal("results/overview.html", project.overview_terms),
    output:
        report(
            "results/overview.html",
            category=project.categories["overview"],
            labels={"content": "overview"},
            caption="../report/overview.rst",
        ),
    log:
        "results/logs/overview.log",
    localrule: True
    conda:
        "../../envs/trainyard.yaml"
    envmodules:
        *project.config.env_modules,
    resources:
        **project.here,
    params:
        program=project.program("overview"),
        terms=project.overview_terms,
    message:
        "overview"
    shell:
        "{params.program} --log-file {log}"
