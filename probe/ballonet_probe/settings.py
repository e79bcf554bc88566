"""What the probe is told by environment variables; bad values fall back and are named."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

LOG = logging.getLogger("vllm.ballonet_probe")

MAX_TOP = 256
MAX_ROLES = 64
MAX_NAME_CHARACTERS = 64


@dataclass(frozen=True)
class RoleLimits:
    """What a role promised.

    Attributes:
        ceiling_tokens: most tokens (prompt + output) of one sequence.
        compact_at_tokens: tokens at which the agent should have compacted its context.
    """

    ceiling_tokens: int | None = None
    compact_at_tokens: int | None = None

    def past_ceiling(self, tokens: int) -> bool:
        """Return whether a sequence of so many tokens is longer than was promised."""
        return self.ceiling_tokens is not None and tokens > self.ceiling_tokens

    def past_compaction(self, tokens: int) -> bool:
        """Return whether the agent should have compacted its context before."""
        return self.compact_at_tokens is not None and tokens > self.compact_at_tokens


@dataclass(frozen=True)
class Settings:
    """Attributes:

    port: TCP port of the first engine of a pod; engine r of the pod listens at port + r.
    top: sequences with series of their own; all others are summed as ``_other``.
    plain_ids: whether request ids are shown as they are instead of hashed.
    roles: declared roles by name.
    """

    enabled: bool = True
    host: str = "0.0.0.0"  # noqa: S104 - the pod's own network namespace
    port: int = 9109
    top: int = 32
    plain_ids: bool = False
    roles: Mapping[str, RoleLimits] = field(default_factory=dict)


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Return the settings of these variables:

    BALLONET_PROBE (``off`` switches it off), BALLONET_PROBE_HOST, BALLONET_PROBE_PORT,
    BALLONET_PROBE_TOP, BALLONET_PROBE_IDS (``hashed`` or ``plain``) and BALLONET_PROBE_ROLES
    (``{"worker": {"ceilingTokens": 16384, "compactAtTokens": 12000}}``).
    """
    default = Settings()
    return Settings(
        enabled=environment.get("BALLONET_PROBE", "on").lower() not in ("off", "0", "false"),
        host=environment.get("BALLONET_PROBE_HOST", default.host),
        port=_number(environment, "BALLONET_PROBE_PORT", default.port, 1, 65535),
        top=_number(environment, "BALLONET_PROBE_TOP", default.top, 0, MAX_TOP),
        plain_ids=environment.get("BALLONET_PROBE_IDS", "hashed").lower() == "plain",
        roles=_roles(environment.get("BALLONET_PROBE_ROLES", "")),
    )


def _number(environment: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = environment.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most:
        return int(text)
    LOG.warning("%s must be a number from %d to %d; %d is used", name, least, most, default)
    return default


def _roles(text: str) -> dict[str, RoleLimits]:
    if not text:
        return {}
    try:
        given = json.loads(text)
        return {
            str(name)[:MAX_NAME_CHARACTERS]: RoleLimits(
                _tokens(limits, "ceilingTokens"), _tokens(limits, "compactAtTokens")
            )
            for name, limits in list(given.items())[:MAX_ROLES]
        }
    except (ValueError, TypeError, AttributeError):
        LOG.warning("BALLONET_PROBE_ROLES is not an object of roles; ceilings are not watched")
        return {}


def _tokens(limits: Mapping[str, object], key: str) -> int | None:
    value = limits.get(key)
    return value if isinstance(value, int) and value > 0 else None
