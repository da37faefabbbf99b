"""Show the trials of all sweeps in optuna-dashboard, also while they run; or write them as studies of Optuna."""

import argparse
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from trainyard.cli import command_line
from trainyard.cluster import host
from trainyard.planning.added_trials import read_current_config
from trainyard.utils.errors import UserError

try:
    from trainyard.report.dashboard import Dashboard, write_studies
except ModuleNotFoundError as missing:
    sys.exit(f"trials are shown with optuna-dashboard ({missing}): install trainyard[dashboard]")

LOOPBACK = "127.0.0.1"
log = logging.getLogger("dashboard")


class Server(ThreadingMixIn, WSGIServer):
    """A server with a thread for each connection: a browser keeps some open that it does not use."""

    daemon_threads = True


class QuietHandler(WSGIRequestHandler):
    """A handler that prints no line for each request."""

    def log_message(self, *of_request: object) -> None:
        """Print nothing."""


def main(arguments: argparse.Namespace) -> None:
    """Write the file, or serve the dashboard until interrupted."""
    config = read_current_config(arguments.config, arguments.results)
    if not config.sweeps:
        raise UserError(f"{arguments.config} has no sweeps")
    if arguments.storage:
        write_studies(config, arguments.results, arguments.storage)
        log.info("%s: the studies %s", arguments.storage, ", ".join(config.sweeps))
        return
    try:
        dashboard = Dashboard(config, arguments.results)
        server = make_server(LOOPBACK, arguments.port, dashboard, server_class=Server, handler_class=QuietHandler)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not from 0 to 65535"
        raise UserError(f"port {arguments.port}: {reason}; --port gives another one") from None
    port, node = server.server_port, os.uname().nodename
    log.info("http://%s:%d/ shows the sweeps until you press Ctrl-C", LOOPBACK, port)
    log.info("from another machine, first: ssh -N -L %d:%s:%d %s@%s", port, LOOPBACK, port, host.user_name(), node)
    log.info("whoever is logged in to %s can open it, too: it has no password, and nothing can be changed in it", node)
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    example = "--config config/config.yaml"
    parser = command_line.build_parser("Show the trials of all sweeps in optuna-dashboard.", example=example)
    parser.add_argument("--port", type=int, default=8080, help="port on this node (default: 8080; 0: any)")
    parser.add_argument("--storage", type=Path, metavar="FILE",
                        help="write them to this file as studies for optuna.load_study, and show nothing")  # fmt: skip
    command_line.run_program(main, parser.parse_args())
