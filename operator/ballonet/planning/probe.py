"""The probe in the engines' pods: what it is told, and where it cannot be loaded.

It is a zip on PYTHONPATH that vLLM finds by an entry point (docs/probe.md), so no flag changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from ballonet.api.v1alpha1 import InferencePoolSpec, PerSequence
from ballonet_probe.archive import NAME
from ballonet_probe.versions import NEWEST, OLDEST, is_known

ARCHIVE: Final = f"{NAME}.zip"
MOUNT: Final = "/opt/ballonet-probe"
# Of the first engine of a pod; the next ones listen behind it, one port each.
FIRST_PORT: Final = 9109
_LEAVE_OUT: Final = "leave it out, or set spec.metrics.perSequence to Disabled"
# What is told to the probe here; a user may still say where it listens and which ids it shows.
_OURS: Final = (
    "BALLONET_PROBE",
    "BALLONET_PROBE_PORT",
    "BALLONET_PROBE_ROLES",
)
# Lists that are added to: a reference to elsewhere cannot be.
_ADDED_TO: Final = ("PYTHONPATH", "VLLM_PLUGINS")


def is_probed(spec: InferencePoolSpec) -> bool:
    """Return whether the engines are to load the probe."""
    return spec.metrics.per_sequence is PerSequence.ENABLED


def version_problems(spec: InferencePoolSpec) -> Iterator[str]:
    """Yield why the probe cannot read this version of the engine, and what to do."""
    if is_probed(spec) and not is_known(spec.engine.version):
        oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
        yield (
            f"spec.metrics.perSequence: the probe reads vLLM {oldest} to {newest} and "
            f"spec.engine.version is {spec.engine.version}: set it to Disabled"
        )


def conflicts(spec: InferencePoolSpec, env: Mapping[str, str | None]) -> Iterator[str]:
    """Yield which variables of a user keep the probe from being loaded, a sentence each."""
    if not is_probed(spec):
        return
    for name in _OURS:
        if name in env:
            yield f"variable {name} is set by Ballonet with spec.metrics.perSequence: {_LEAVE_OUT}"
    for name in _ADDED_TO:
        if name in env and env[name] is None:
            yield (
                f"variable {name} is a reference, to which spec.metrics.perSequence cannot add the "
                "probe: write its value"
            )


def probe_env(spec: InferencePoolSpec, env: Mapping[str, str | None]) -> dict[str, str]:
    """Return the variables that load the probe beside what the user loads; empty without it."""
    if not is_probed(spec):
        return {}
    path, plugins = env.get("PYTHONPATH"), env.get("VLLM_PLUGINS")
    variables = {
        "PYTHONPATH": ":".join(filter(None, (f"{MOUNT}/{ARCHIVE}", path))),
        "BALLONET_PROBE_PORT": str(FIRST_PORT),
        "BALLONET_PROBE_ROLES": json.dumps(_limits(spec), separators=(",", ":")),
    }
    # Unset, it means all plugins; set, only those that it names.
    if plugins is not None and NAME not in plugins.split(","):
        variables["VLLM_PLUGINS"] = ",".join(filter(None, (plugins, NAME)))
    return variables


def probe_ports(spec: InferencePoolSpec) -> tuple[int, ...]:
    """Return the ports of the probes of one pod, an engine each; empty without the probe."""
    if not is_probed(spec):
        return ()
    return tuple(range(FIRST_PORT, FIRST_PORT + spec.parallelism.data))


def _limits(spec: InferencePoolSpec) -> dict[str, dict[str, int]]:
    """Return what each role promised, by its name.

    A request says its role and not its topology, so of roles of one name the laxest promise counts.
    """
    limits: dict[str, dict[str, int]] = {}
    roles = [role for topology in spec.topologies for role in topology.roles]
    for name in dict.fromkeys(role.name for role in roles):
        namesakes = [role for role in roles if role.name == name]
        ceilings = [spec.ceiling_of(role) for role in namesakes]
        limits[name] = {"ceilingTokens": max(ceilings)}
        compact = [role.compact_at_tokens for role in namesakes]
        if None not in compact:
            limits[name]["compactAtTokens"] = max(tokens for tokens in compact if tokens)
    return limits
