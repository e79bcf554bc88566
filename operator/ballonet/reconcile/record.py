"""What was applied for a pool, kept on its Deployment: the inputs and what they were rendered to.

It lets a newer operator tell "the user changed something" from "I would do it differently now":
only the first may replace pods. A copy on the budget ConfigMap lets a deleted Deployment be put
back.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from dataclasses import asdict, dataclass
from typing import Any, Final

from pydantic import ValidationError

from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.cluster.port import Json

ANNOTATION: Final = "ballonet.io/applied"
_MAX_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class AppliedRecord:
    """Inputs and outcome of one rendering.

    ``spec`` is the pool's spec as it was read, without replicas; ``strategy`` the Deployment's
    fields about roll-outs; ``budget`` the document for agent runtimes; ``previous_budget`` that of
    the template before, for as long as both may serve.
    """

    spec: Json
    config_text: str | None
    template: Json
    strategy: Json
    engine_args: tuple[str, ...]
    budget: Json
    previous_budget: Json | None = None

    def encode(self) -> str:
        """Return the record as annotation text, the same for the same record."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        # mtime=0 and a fixed level: the text must not change from pass to pass.
        return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()

    def same_spec(self, spec: Json) -> bool:
        """Return whether the record was rendered from this spec, whatever its replicas.

        Both are read by today's model, so a default that a newer CRD adds is no difference.
        """
        return normal_form(self.spec) == normal_form(spec)


def decode(text: str | None) -> AppliedRecord | None:
    """Return the record in an annotation, or None where there is none that can be read."""
    if not text:
        return None
    try:
        unzipper = zlib.decompressobj(wbits=31)
        raw = unzipper.decompress(base64.b64decode(text, validate=True), _MAX_BYTES)
        fields: dict[str, Any] = json.loads(raw)
        return AppliedRecord(**{**fields, "engine_args": tuple(fields["engine_args"])})
    except (ValueError, TypeError, KeyError, zlib.error):
        return None


def without_replicas(spec: Json) -> Json:
    """Return the spec without what scaling changes: it never shapes a pod."""
    return {key: value for key, value in spec.items() if key != "replicas"}


def normal_form(spec: Json) -> InferencePoolSpec | Json:
    """Return the spec as today's model reads it, or as it stands where that fails."""
    bare = without_replicas(spec)
    try:
        return InferencePoolSpec.model_validate(bare)
    except ValidationError:
        return bare
