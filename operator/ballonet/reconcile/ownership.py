"""Whose is the object that bears a name we need? Asked before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from ballonet.api.v1alpha1 import API_VERSION, KIND
from ballonet.cluster.port import Json

POOL_LABEL: Final = "ballonet.io/pool"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "ballonet"
INSTALLATION_ANNOTATION: Final = "ballonet.io/installation"


class Holder(Enum):
    """Who holds an object of one of our names."""

    NOBODY = "there is none"
    THIS_POOL = "controlled by this pool"
    ORPHAN = "left behind without a controller, with our label: taken over as it is"
    EARLIER_POOL = "controlled by an earlier pool of this name that is gone"
    LEAVING = "being deleted"
    SOMEBODY_ELSE = "not ours"


@dataclass(frozen=True)
class Child:
    """An object of a name that the pool needs, and who holds it."""

    live: Json | None
    holder: Holder

    @property
    def own(self) -> Json | None:
        """The live object if this pool controls it."""
        return self.live if self.holder is Holder.THIS_POOL else None


def examine(live: Json | None, pool: Json) -> Child:
    """Return who holds the live object, seen from the pool."""
    return Child(live, _holder(live, pool["metadata"]))


def owner_reference(pool: Json) -> Json:
    """Return the reference that makes the garbage collector remove children with their pool.

    It does not block the pool's own deletion: that needs a right on finalizers where the API
    server enforces it, and an operator that can be gone must not hold up a deletion.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": pool["metadata"]["name"],
        "uid": pool["metadata"]["uid"],
        "controller": True,
    }


def _holder(live: Json | None, pool: Json) -> Holder:
    if live is None:
        return Holder.NOBODY
    metadata = live["metadata"]
    controller = next(
        (owner for owner in metadata.get("ownerReferences", ()) if owner.get("controller")), None
    )
    if controller is None:
        ours = metadata.get("labels", {}).get(POOL_LABEL) == pool["name"]
        holder = Holder.ORPHAN if ours else Holder.SOMEBODY_ELSE
    elif controller.get("uid") == pool["uid"]:
        holder = Holder.THIS_POOL
    elif (
        controller.get("apiVersion", "").split("/")[0] == API_VERSION.split("/")[0]
        and controller.get("kind") == KIND
        and controller.get("name") == pool["name"]
    ):
        # The name is ours now, so the pool of that other uid no longer exists.
        holder = Holder.EARLIER_POOL
    else:
        holder = Holder.SOMEBODY_ELSE
    if holder is not Holder.SOMEBODY_ELSE and metadata.get("deletionTimestamp"):
        return Holder.LEAVING
    return holder
