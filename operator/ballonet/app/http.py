"""The operator's own HTTP server: /livez, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

Check = Callable[[], str | None]
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Health:
    """What must hold: each check returns None, or what is wrong.

    Liveness speaks of this process alone, never of the API server or of engines: restarting it
    would not mend those.
    """

    live: Iterable[Check]
    ready: Iterable[Check]


class HttpServer:
    """Serves until closed. ``port`` is the real one, also where 0 was asked for."""

    def __init__(self, health: Health, page: Callable[[], Awaitable[bytes]]) -> None:
        self._health = health
        self._page = page
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, host: str | None, port: int) -> None:
        """Begin to listen.

        Raises:
            OSError: the address cannot be listened on.
        """
        app = web.Application()
        app.router.add_get("/livez", self._live)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _live(self, _: web.Request) -> web.Response:
        return _answer(self._health.live)

    async def _ready(self, _: web.Request) -> web.Response:
        return _answer(self._health.ready)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._page(), headers={"Content-Type": METRICS_TYPE})


def _answer(checks: Iterable[Check]) -> web.Response:
    problems = [problem for check in checks if (problem := check()) is not None]
    text = "\n".join(problems or ["ok"]) + "\n"
    return web.Response(text=text, status=503 if problems else 200)
