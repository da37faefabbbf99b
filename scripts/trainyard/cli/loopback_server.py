"""A web server for pages that only this machine can open."""

import logging
import os
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import WSGIApplication

from trainyard.cluster import host
from trainyard.utils.errors import UserError

LOOPBACK: Final = "127.0.0.1"
log = logging.getLogger(__name__)


class _Server(ThreadingMixIn, WSGIServer):
    """A server with a thread for each connection: a browser keeps some open that it does not use."""

    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    """A handler that prints no line for each request."""

    def log_message(self, *of_request: object) -> None:
        """Print nothing."""


def serve(application: WSGIApplication, port: int, what: str) -> None:
    """Serve an application until interrupted, and log how to open it; port 0 is a free one.

    Raises:
        UserError: the port cannot be used.
    """
    try:
        server = make_server(LOOPBACK, port, application, server_class=_Server, handler_class=_QuietHandler)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not from 0 to 65535"
        raise UserError(f"port {port}: {reason}; --port gives another one") from None
    port = server.server_port
    node = os.uname().nodename
    log.info("http://%s:%d/ shows %s until you press Ctrl-C", LOOPBACK, port, what)
    log.info("from another machine, first: ssh -N -L %d:%s:%d %s@%s", port, LOOPBACK, port, host.user_name(), node)
    log.info("whoever is logged in to %s can open it, too: it has no password, and nothing can be changed in it", node)
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()
