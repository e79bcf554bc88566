"""Granted rights and used rights are the same. Runs last: the session is the evidence."""

from __future__ import annotations

from typing import Final

import pytest

from e2e.conftest import need_audit
from e2e.harness import installation
from e2e.harness.installation import OPERATOR_USER
from e2e.harness.site import Site

Right = tuple[str, str, str]
_APPLIED: Final = (("apps", "deployments"), ("", "services"), ("", "configmaps"))
# Granted and not seen in the audit log, with the reason.
NOT_SEEN: Final[dict[Right, str]] = {
    # The API server asks for `create` when an apply makes the object, and logs the apply: `patch`.
    **{(*child, "create"): "server-side apply of a new object" for child in _APPLIED},
    # Only for what an earlier pool of the name left behind; the garbage collector is mostly faster.
    **{(*child, "delete"): "children of an earlier pool of the same name" for child in _APPLIED},
}
# Every account may ask these of itself and of discovery; no role of ours grants them.
GIVEN_TO_ALL: Final = frozenset({"selfsubjectaccessreviews", "selfsubjectrulesreviews"})


# Rights of deploy/rbac-nodes.yaml, which is optional: the operator finds out by asking.
OFFERED: Final = {("", "nodes", "get")}


def granted() -> set[Right]:
    """The rights in deploy/ that the operator's account is bound to, cluster-wide profile."""
    rights: set[Right] = set()
    for name in ("operator.yaml", "rbac-cluster.yaml"):
        for document in installation.documents(installation.DEPLOY_FOLDER / name):
            if document["kind"] in ("Role", "ClusterRole"):
                for rule in document["rules"]:
                    rights |= {
                        (group, resource, verb)
                        for group in rule["apiGroups"]
                        for resource in rule["resources"]
                        for verb in rule["verbs"]
                    }
    return rights


def test_rights_granted_are_the_rights_used(site: Site, request: pytest.FixtureRequest) -> None:
    entries = need_audit(site).entries(user=OPERATOR_USER)
    if request.session.testscollected < 40:
        pytest.skip("only a whole session uses every right")
    used = {
        (entry.group, entry.resource, entry.verb)
        for entry in entries
        if not entry.resource.startswith("/") and entry.resource not in GIVEN_TO_ALL
    }
    assert used - granted() <= OFFERED, "asked for without the right"
    unused = granted() - used - set(NOT_SEEN)
    assert unused == set(), "granted and never used"


def test_no_role_gives_a_right_on_secrets() -> None:
    everything = {resource for _, resource, _ in granted()}
    assert "secrets" not in everything
    assert "*" not in everything


def test_the_namespaced_profile_gives_what_the_cluster_profile_gives_on_namespaces() -> None:
    def rules(name: str, kind: str) -> set[Right]:
        return {
            (group, resource, verb)
            for document in installation.documents(installation.DEPLOY_FOLDER / name)
            if document["kind"] == kind
            for rule in document["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    of_others = {("coordination.k8s.io", "leases", "get")}
    cluster = rules("rbac-cluster.yaml", "ClusterRole")
    assert rules("rbac-namespaced.yaml", "Role") == cluster - of_others
