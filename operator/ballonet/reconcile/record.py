"""What was applied for a pool, kept on its Deployment: the inputs and what they were rendered to.

It lets a newer operator tell "the user changed something" from "I would do it differently now":
only the first may replace pods.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ballonet.api.quantity import quantity_bytes
from ballonet.api.v1alpha1 import InferencePoolSpec, OffloadMode
from ballonet.cluster.port import Json
from ballonet.engines.vllm_written import given_kv_bytes, written_limits

ANNOTATION: Final = "ballonet.io/applied"
# The members of the document for agent runtimes that an engine enforces.
LIMITS: Final = ("slots", "ceilingTokens")
_MAX_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class AppliedRecord:
    """Inputs and outcome of one rendering.

    Attributes:
        uid, generation: of the pool when it was looked at last.
        spec: its spec as it was read, without replicas.
        config_text: the config.json that it refers to, if it does.
        strategy: the Deployment's fields about roll-outs.
        budget: the document for agent runtimes.
        previous_budget: that of the template before, for as long as both may serve.
        receipts: what starts of the configuration had measured by then, as text: what is learnt
            does not change the plan of what runs.
    """

    uid: str
    generation: int
    spec: Json
    config_text: str | None
    template: Json
    strategy: Json
    engine_args: tuple[str, ...]
    budget: Json
    previous_budget: Json | None = None
    receipts: str = ""
    # A record made from this one by replace() has none.
    _read_from: str | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def host_cache_bytes(self) -> int | None:
        """Host memory of an engine for KV blocks; None without offload."""
        offload = self.spec.get("offload", {})
        enabled = offload.get("mode") == OffloadMode.ENABLED
        return quantity_bytes(offload["hostMemory"]) if enabled else None

    def encode(self) -> str:
        """Return the record as annotation text: what it was read from, if it was.

        So neither another version nor another compression writes to objects that stay as they are.
        """
        if self._read_from is not None:
            return self._read_from
        # Not asdict, which copies the whole depth.
        members = {name: getattr(self, name) for name in _members()}
        text = json.dumps(members, sort_keys=True, separators=(",", ":"))
        # mtime=0 and a fixed level: the text must not change from pass to pass.
        return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()

    def speaks_of(self, pool: Json) -> bool:
        """Return whether the user changed nothing but replicas since.

        A default that a newer CRD adds changes how a spec reads but not its generation, and one
        that today's model knows too is none at all.
        """
        metadata = pool["metadata"]
        if (self.uid, self.generation) == (metadata["uid"], metadata.get("generation")):
            return True
        return normal_form(self.spec) == normal_form(pool.get("spec", {}))

    def served_alone(self) -> AppliedRecord:
        """Return the record once no pod of the template before serves any longer."""
        return self if self.previous_budget is None else replace(self, previous_budget=None)

    def brought_up_to(self, pool: Json) -> AppliedRecord:
        """Return the record for a pool that it speaks of, as that reads now."""
        metadata = pool["metadata"]
        now = replace(
            self,
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            spec=without_replicas(pool.get("spec", {})),
        )
        # One that is as it was is written as it was.
        return self if now == self else now


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _Budget(_Part):
    slots: int
    ceilingTokens: int  # noqa: N815 - as it is written


class _Engine(_Part):
    version: str


class _Spec(_Part):
    engine: _Engine
    budget: dict[str, Any] = {}
    offload: dict[str, Any] = {}


class _Named(_Part):
    name: str


class _Mount(_Named):
    mountPath: str  # noqa: N815 - as it is written


class _Container(_Named):
    env: list[_Named] = []
    volumeMounts: list[_Mount] = []  # noqa: N815 - as it is written


class _PodSpec(_Part):
    containers: list[_Container] = Field(min_length=1)
    volumes: list[dict[str, Any]] = []


class _Template(_Part):
    spec: _PodSpec


class _Whole(_Part):
    """What a record must have to be worked with; whoever may edit a Deployment may write any."""

    uid: str
    generation: int
    spec: _Spec
    config_text: str | None
    template: _Template
    strategy: dict[str, Any]
    engine_args: list[str]
    budget: _Budget
    previous_budget: _Budget | None = None
    receipts: str = ""


def decode(text: str | None) -> AppliedRecord | None:
    """Return the record in an annotation, or None where there is none that is whole."""
    if not text:
        return None
    try:
        unzipper = zlib.decompressobj(wbits=31)
        raw = unzipper.decompress(base64.b64decode(text, validate=True), _MAX_BYTES)
        stored: dict[str, Any] = json.loads(raw)
        _Whole.model_validate(stored)
        # A newer operator may have written more; that is no reason to lose what is known here.
        known = {name: stored[name] for name in _members() if name in stored}
        record = AppliedRecord(**{**known, "engine_args": tuple(known["engine_args"])})
        written_limits(record.engine_args), given_kv_bytes(record.engine_args)
        _ = record.host_cache_bytes
    except (ValueError, TypeError, LookupError, RecursionError, zlib.error):
        return None
    object.__setattr__(record, "_read_from", text)
    return record


def _members() -> tuple[str, ...]:
    return tuple(one.name for one in fields(AppliedRecord) if one.init)


def without_replicas(spec: Json) -> Json:
    """Return the spec without what scaling changes: that alone never replaces a pod."""
    return {key: value for key, value in spec.items() if key != "replicas"}


def normal_form(spec: Json) -> InferencePoolSpec | Json:
    """Return the spec as today's model reads it, or as it stands where that fails."""
    bare = without_replicas(spec)
    try:
        return InferencePoolSpec.model_validate(bare)
    except ValidationError:
        return bare
