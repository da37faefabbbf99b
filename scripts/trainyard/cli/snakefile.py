"""What the Snakefile takes from Snakemake, run as the main workflow or imported by another one (`module`)."""

import atexit
import gc
import importlib.util
import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainyard.cli.dry_run import show_plan
from trainyard.cli.job_resources import JOB_RULES, SWEEP_RULES
from trainyard.cli.json_output import print_error
from trainyard.cli.profile import Profile
from trainyard.cli.workflow import Workflow
from trainyard.cluster.node_folders import hold_until_end
from trainyard.config.load import compose
from trainyard.config.parser import parse_value
from trainyard.utils.errors import UserError
from trainyard.utils.typed_commands import AS_JSON

Snakemake = Any  # snakemake.workflow.Workflow


@contextmanager
def plain_errors() -> Iterator[None]:
    """Print a UserError as the only message and exit with 1: Snakemake would add lines of code to the exception."""
    try:
        yield
    except UserError as error:
        if AS_JSON in os.environ:
            print_error(error)
        raise SystemExit(f"{type(error).__name__}: {error}") from None
    except Exception as error:
        if AS_JSON not in os.environ:
            raise
        traceback.print_exc()
        print_error(error)
        raise SystemExit(1) from None


@plain_errors()
def open_workflow(snakemake: Snakemake, config: Mapping[str, Any]) -> Workflow:
    """The checked config, with the settings of the profile and the command line.

    The program ends if the config or a setting has errors. A dry run also ends if anything else that can be checked
    before a job is queued is wrong.
    """
    importing = snakemake.modifier  # the names and folders that a module statement gives
    if not (is_module := not importing.is_main_snakefile()):  # a user's workflow may have what must be finalized
        atexit.register(gc.freeze)  # otherwise Python collects Snakemake's garbage before it ends: half a second
    names = {importing.modify_rulename(rule): rule for rule in JOB_RULES}
    set_resources = _share_settings(snakemake, *map(importing.modify_rulename, SWEEP_RULES))
    profile = Profile(
        snakemake.resource_settings.default_resources,
        executor=lambda: snakemake.executor_settings,
        set_resources={names[rule]: settings for rule, settings in set_resources.items() if rule in names},
        is_main=snakemake.is_main_process,
    )
    workflow = Workflow(
        _given_config(snakemake, config) if is_module else _config_of_files(snakemake),
        results=Path("results"),
        prefixed=Path(importing.modify_path("results/configs")).parent,
        profile=profile,
        config_files=snakemake.configfiles,
        deployment=snakemake.deployment_settings.deployment_method,
        is_dry_run=lambda: snakemake.dryrun,
        make_again=lambda output: snakemake.dag.forcefiles.add(output),
    )
    if not (dry_run := snakemake.output_settings.dryrun):
        profile.ask_accounting()  # while Snakemake reads the rules
    if dry_run and not is_module:
        show_plan(snakemake, workflow)
    if dry_run or (is_module and snakemake.is_main_process):  # Snakemake runs no `onstart` of these
        workflow.check(dry_run=dry_run)
        if not dry_run:
            workflow.begin()
    if not dry_run:
        if not is_module:  # Snakemake prints no summary of a module either
            workflow.answer_at_rest(snakemake)
        hold_until_end(Path(snakemake._snakemake_tmp_dir.name))
    if importlib.util.find_spec("snakemake_executor_plugin_slurm"):
        from trainyard.cli import slurm_executor

        rules = snakemake.current_basedir.join("workflow/rules")
        file = None if is_module else workflow.config_file.absolute()
        slurm_executor.register(workflow, config_file=file, own_rules=rules)
    if not is_module:
        gc.freeze()  # the modules, Snakemake's too, stay until the end
    gc.enable()
    return workflow


def _share_settings(snakemake: Snakemake, rule: str, other: str) -> Mapping[str, Any]:
    """The resources that are set for rules, after what is set for a rule, its threads too, was also set for another."""
    settings = snakemake.resource_settings
    for name in ("overwrite_resources", "overwrite_threads"):
        given = getattr(settings, name) or {}
        if rule in given:
            setattr(settings, name, {**given, other: given[rule]})
    return settings.overwrite_resources or {}


def _config_of_files(snakemake: Snakemake) -> dict[str, Any]:
    """The config files and `--config`, read again: Snakemake takes `1e-5` in them for text.

    Those of the command line come last, also if the Snakefile names one.
    """
    given = list(snakemake.overwrite_configfiles)
    named = [path for path in snakemake.configfiles if path not in given]
    return compose([*map(Path, named), *map(Path, given)], snakemake.config_settings.config)


def _given_config(snakemake: Snakemake, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config that another workflow gives to the module: its own one, a part of it, or one that it computes."""
    from snakemake.common.configfile import load_configfile
    from snakemake.utils import update_config

    merged: dict[str, Any] = {}  # what Snakemake makes of all config files and `--config`
    for path in snakemake.configfiles:
        update_config(merged, load_configfile(path))
    update_config(merged, snakemake.config_settings.overwrite_config)
    return _config_of_files(snakemake) if config == merged else dict(parse_value(config))
