"""A thread in the engine core that answers scrapes, one at a time."""

from __future__ import annotations

import contextlib
import http.server
import socket
import socketserver
import threading

from ballonet_probe.page import CONTENT_TYPE
from ballonet_probe.scheduler import Probe
from ballonet_probe.settings import LOG, Settings

# A client that does not send its request or does not read the answer is let go after this.
CLIENT_SECONDS = 2.0


def serve(probe: Probe, settings: Settings) -> int | None:
    """Serve /metrics of a probe; return the port, or None where it is taken."""

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = CLIENT_SECONDS

        def handle(self) -> None:
            # The limit of the socket begins anew with each byte that comes.
            self.deadline = threading.Timer(CLIENT_SECONDS, self.let_go)
            self.deadline.daemon = True
            self.deadline.start()
            try:
                super().handle()
            finally:
                self.deadline.cancel()

        def let_go(self) -> None:
            """Break off with a client that has not sent its request yet."""
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def do_GET(self) -> None:
            self.deadline.cancel()
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            body = probe.page().encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: a scrape is no news."""

    port = settings.port + probe.local_rank
    try:
        # One thread for all clients: a flood of them must not become threads of the engine.
        server = _Server((settings.host, port), Handler)
    except (OSError, OverflowError) as error:  # Ports end at 65535.
        LOG.warning("port %d cannot be had (%s); nothing is served", port, error)
        return None
    threading.Thread(target=server.serve_forever, daemon=True, name="ballonet-probe").start()
    LOG.info("serving /metrics on port %d", port)
    return port


class _Server(http.server.HTTPServer):
    def server_bind(self) -> None:
        """Bind; HTTPServer would ask the name service too, and the engine would wait for it."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Let a client go that broke off; it is no fault of the engine's."""
