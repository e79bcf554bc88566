"""Another API has a kind and plural of the same names."""

from __future__ import annotations

from e2e.conftest import need_audit
from e2e.harness.api import FOREIGN_POOL, Api
from e2e.harness.installation import OPERATOR_USER
from e2e.harness.operators import PodOperator
from e2e.harness.pool_client import PoolClient
from e2e.harness.pools import a_pool
from e2e.harness.site import Site


def test_the_gateway_apis_inference_pool_is_never_touched(
    site: Site, api: Api, pod_operator: PodOperator, pools: PoolClient, namespace: str
) -> None:
    audit = need_audit(site)
    mark = audit.mark()
    foreign = api.create(
        {
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": {"name": "pool", "namespace": namespace},
            "spec": {
                "selector": {"matchLabels": {"app": "vllm"}},
                "targetPorts": [{"number": 8000}],
                "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
            },
        }
    )

    pools.create_ready(a_pool())

    assert api.get(FOREIGN_POOL, namespace, "pool") == foreign
    asked = {entry.group for entry in audit.entries(mark, OPERATOR_USER)}
    assert "ballonet.io" in asked
    assert "inference.networking.k8s.io" not in asked
    assert site.kubectl("-n", namespace, "get", "kvpool", "-o", "name").split() == [
        "inferencepool.ballonet.io/pool"
    ]
