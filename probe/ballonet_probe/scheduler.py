"""A subclass of whatever scheduler the engine chose, which lets the probe read it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ballonet_probe.lifecycle import Lifecycle
from ballonet_probe.page import live_page, off_page
from ballonet_probe.settings import LOG, Settings
from ballonet_probe.snapshot import take


class Probe:
    """Reads one scheduler; ends itself at the first thing that it does not understand.

    Attributes:
        lock: held while the scheduler changes, so that a scrape sees whole steps only.
    """

    def __init__(self, scheduler: Any, settings: Settings) -> None:
        parallel = scheduler.vllm_config.parallel_config
        model = scheduler.vllm_config.model_config
        name = model.served_model_name or model.model
        engine = getattr(parallel, "data_parallel_index", None)
        self.lock = threading.RLock()
        self.local_rank: int = getattr(parallel, "data_parallel_rank_local", None) or 0
        self._scheduler = scheduler
        self._settings = settings
        self._lifecycle = Lifecycle(settings)
        self._failure: str | None = None
        self._common = {
            "model": name[0] if isinstance(name, (list, tuple)) else name,
            "engine": parallel.data_parallel_rank if engine is None else engine,
        }
        self.page()  # An engine that cannot be read is found out here, not at the first scrape.

    def note(self, happened: Callable[[Lifecycle], None]) -> None:
        """Count something; the engine goes on whatever that raises."""
        if self._failure is None:
            try:
                happened(self._lifecycle)
            except Exception as error:
                self._fail(error)

    def page(self) -> str:
        """Return the page of metrics for a scrape."""
        if self._failure is None:
            try:
                return self._read()
            except Exception as error:
                self._fail(error)
        return off_page(self._common, str(self._failure))

    def _read(self) -> str:
        # The page is made under the lock too: it reads counters, and takes less than the scan.
        with self.lock:
            start = time.perf_counter()
            snapshot = take(self._scheduler)
            return live_page(
                self._common,
                self._settings,
                snapshot,
                self._lifecycle,
                scan_seconds=time.perf_counter() - start,
            )

    def _fail(self, error: Exception) -> None:
        self._failure = f"{type(error).__name__}: {error}"
        LOG.exception("the probe switched itself off; the engine goes on")


def probed(base: type, settings: Settings, serve: Callable[[Probe], None]) -> type:
    """Return a subclass of a scheduler class whose instances are read and served.

    Overrides only what each version from 0.17 has as public methods, and hands all arguments on.
    """
    if getattr(base, "_ballonet_probed", False):
        return base

    class Probed(base):  # type: ignore[misc]
        _ballonet_probed = True
        _ballonet: Probe | None = None

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            try:
                self._ballonet = Probe(self, settings)
                serve(self._ballonet)
            except Exception:
                LOG.exception("the probe cannot read this engine and is off; the engine goes on")

        def schedule(self, *args: Any, **options: Any) -> Any:
            probe = self._ballonet
            if probe is None:
                return super().schedule(*args, **options)
            with probe.lock:
                output = super().schedule(*args, **options)
                probe.note(lambda lifecycle: lifecycle.scheduled(output, len(self.running)))
            return output

        def update_from_output(self, *args: Any, **options: Any) -> Any:
            probe = self._ballonet
            if probe is None:
                return super().update_from_output(*args, **options)
            with probe.lock:
                outputs = super().update_from_output(*args, **options)

                def ended(lifecycle: Lifecycle) -> None:
                    for of_client in outputs.values():
                        for one in of_client.outputs:
                            if one.finish_reason is not None:
                                lifecycle.ended(one.request_id, "finished")

                probe.note(ended)
            return outputs

        def add_request(self, request: Any, *args: Any, **options: Any) -> Any:
            probe = self._ballonet
            if probe is None:
                return super().add_request(request, *args, **options)
            with probe.lock:
                probe.note(lambda lifecycle: lifecycle.arrived(request))
                return super().add_request(request, *args, **options)

        def finish_requests(self, *args: Any, **options: Any) -> Any:
            probe = self._ballonet
            if probe is None:
                return super().finish_requests(*args, **options)
            with probe.lock:
                result = super().finish_requests(*args, **options)
                named = args[0] if args else options.get("request_ids")
                probe.note(lambda lifecycle: lifecycle.aborted(named))
            return result

        def reset_prefix_cache(self, *args: Any, **options: Any) -> Any:
            probe = self._ballonet
            if probe is None:
                return super().reset_prefix_cache(*args, **options)
            with probe.lock:
                return super().reset_prefix_cache(*args, **options)

    Probed.__name__ = Probed.__qualname__ = f"Probed{base.__name__}"
    return Probed
