"""What is installed before any scenario: definitions, rights, the operator's account."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

from e2e.harness.api import CRD, NAMESPACE, Api, ApiError, Json
from e2e.harness.poll import eventually

REPOSITORY: Final = Path(__file__).parents[2]
CRD_FOLDER: Final = REPOSITORY / "crds"
DEPLOY_FOLDER: Final = REPOSITORY / "deploy"
FOREIGN_CRD: Final = REPOSITORY / "e2e" / "crd" / "foreign-inferencepool.yaml"
SYSTEM_NAMESPACE: Final = "ballonet-system"
OPERATOR_IMAGE: Final = "localhost/ballonet/operator:dev"
ACCOUNT: Final = "ballonet-operator"
OPERATOR_USER: Final = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{ACCOUNT}"


def documents(path: Path) -> Iterator[Json]:
    """Yield the objects of a YAML file."""
    for document in yaml.safe_load_all(path.read_text()):
        if document is not None:
            yield document


def pool_crd() -> Json:
    """Return our definition as it stands in the checkout."""
    (definition,) = [d for path in sorted(CRD_FOLDER.glob("*.yaml")) for d in documents(path)]
    return definition


def install_crd(api: Api, definition: Json) -> None:
    """Apply a definition and wait until it is served."""
    name = definition["metadata"]["name"]
    api.apply(definition)

    def served() -> bool:
        # The list may be there and null.
        conditions = api.get(CRD, None, name).get("status", {}).get("conditions") or []
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    eventually(served, f"the definition {name} is established", timeout_seconds=30)
    version = definition["spec"]["versions"][0]["name"]
    group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]

    def listed() -> bool:
        try:
            api.call("GET", f"/apis/{group}/{version}/{plural}", query={"limit": "1"})
        except ApiError as error:
            assert error.status == 404, error
            return False
        return True

    eventually(listed, f"{plural} of {group} are served", timeout_seconds=30)


def install_account_and_rights(api: Api) -> None:
    """Apply namespace, service account and rights of the cluster-wide profile, as shipped."""
    for path in (DEPLOY_FOLDER / "operator.yaml", DEPLOY_FOLDER / "rbac-cluster.yaml"):
        for document in documents(path):
            if document["kind"] != "Deployment":
                api.apply(document)
    eventually(
        lambda: api.get(NAMESPACE, None, SYSTEM_NAMESPACE)["status"]["phase"] == "Active",
        "the operator's namespace is active",
    )


def operator_deployment(env: dict[str, str] | None = None) -> Json:
    """Return the shipped Deployment of the operator, with the image under test."""
    (shipped,) = [
        d for d in documents(DEPLOY_FOLDER / "operator.yaml") if d["kind"] == "Deployment"
    ]
    deployment = copy.deepcopy(shipped)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["image"] = OPERATOR_IMAGE
    container["imagePullPolicy"] = "IfNotPresent"
    variables = container.setdefault("env", [])
    variables.extend({"name": name, "value": value} for name, value in (env or {}).items())
    return deployment
