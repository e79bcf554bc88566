"""Which engines are started alike: what a pod runs, but for its limits, as one short word."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.engines import vllm
from ballonet.engines.vllm_written import without_limits
from ballonet.planning.pod import user_env


def configuration(spec: InferencePoolSpec, config_text: str | None, args: Sequence[str]) -> str:
    """Return a hash of everything that decides what an engine measures, but for its limits.

    Args:
        spec: what the user wants.
        config_text: content of the ConfigMap key that the model's config refers to, or None.
        args: the arguments that Ballonet writes; their limits do not count.
    """
    model = spec.model
    inputs = [
        [model.name, model.revision, None if model.claim is None else model.claim.model_dump()],
        [None if model.config is None else model.config.inline, config_text],
        spec.engine.image or vllm.default_image(spec.engine.version),
        spec.accelerator.type.lower(),
        without_limits(args),
        spec.engine.args,
        sorted(user_env(spec).items()),
    ]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]
