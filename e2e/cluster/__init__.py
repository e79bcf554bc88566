"""A real Kubernetes of one node on this machine, without a container engine. See
docs/testing-cluster.md."""

from e2e.cluster.cluster import Cluster, Status, unavailable_reason
from e2e.cluster.errors import ClusterError

__all__ = ["Cluster", "ClusterError", "Status", "unavailable_reason"]
