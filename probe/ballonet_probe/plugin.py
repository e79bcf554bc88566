"""What vLLM calls in each of its processes (entry point group ``vllm.general_plugins``).

One method is wrapped, ``SchedulerConfig.get_scheduler_cls``, so that the class that vLLM picked
itself (Scheduler, AsyncScheduler or the user's ``--scheduler-cls``) is the one that is subclassed.
It is called in the engine core only (v1/engine/core.py).
"""

from __future__ import annotations

import os
from typing import Any

from ballonet_probe.scheduler import Probe, probed
from ballonet_probe.server import serve
from ballonet_probe.settings import LOG, Settings, read_settings
from ballonet_probe.versions import is_known


def register() -> None:
    """Arm the probe; never raises, and a second call does nothing."""
    try:
        _register(read_settings(os.environ))
    except Exception:
        LOG.exception("the probe is off; the engine goes on")


def _register(settings: Settings) -> None:
    if not settings.enabled:
        return
    from vllm import __version__  # noqa: PLC0415 - this package is imported without vLLM too
    from vllm.config.scheduler import SchedulerConfig  # noqa: PLC0415

    if not is_known(__version__):
        LOG.warning("vLLM %s is not known to the probe, which is off", __version__)
        return
    chosen = SchedulerConfig.get_scheduler_cls
    if getattr(chosen, "_ballonet_probed", False):
        return

    def serve_probe(probe: Probe) -> None:
        serve(probe, settings)

    def get_scheduler_cls(self: Any) -> type:
        base: type = chosen(self)
        try:
            return probed(base, settings, serve_probe)
        except Exception:
            LOG.exception("%r cannot be subclassed; the probe is off", base)
            return base

    get_scheduler_cls._ballonet_probed = True  # type: ignore[attr-defined]
    SchedulerConfig.get_scheduler_cls = get_scheduler_cls
