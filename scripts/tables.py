"""Make the table of a scaling study from its scales, and pages for the report from the tables of any study."""

import argparse
import logging
from pathlib import Path

import pandas as pd
from trainyard import programs
from trainyard.config import Config
from trainyard.configfile import read_config
from trainyard.tables import scaling_table, write_page, write_table

log = logging.getLogger("tables")

TABLES = {"sweeps": "trials.csv", "scaling": "scaling.csv", "trees": "trees.csv"}


def main(arguments: argparse.Namespace) -> None:
    """Write a study's table, if it is not the study's own program that does, and its page."""
    config = read_config(arguments.config)
    programs.section(config, arguments.kind, arguments.name)
    source = arguments.results / arguments.kind / arguments.name
    if arguments.kind == "scaling":
        _write_scaling(config, arguments.name, source)
    page = arguments.results / "tables" / arguments.kind / f"{arguments.name}.html"
    write_page(pd.read_csv(source / TABLES[arguments.kind]), page, title=f"{arguments.kind}: {arguments.name}")
    log.info("table %s, page %s", source / TABLES[arguments.kind], page)


def _write_scaling(config: Config, name: str, source: Path) -> None:
    study = config.scaling[name]
    folders = [source / scale for scale in study.scales]
    write_table(scaling_table(folders, mode=study.mode, gpu_hour=config.pricing.gpu_hour), source / "scaling.csv")


def _arguments() -> argparse.Namespace:
    example = "python scripts/tables.py --config config/config.yaml --kind scaling --name width"
    parser = programs.parser("Make the tables of a study.", example=example)
    parser.add_argument("--kind", required=True, choices=list(TABLES), help="the config's section")
    parser.add_argument("--name", required=True, metavar="NAME", help="a name in that section of the config")
    return parser.parse_args()


if __name__ == "__main__":
    programs.run(main, _arguments())
