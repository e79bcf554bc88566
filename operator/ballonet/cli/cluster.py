"""Commands that ask a cluster: what goes wrong there is a message, never a traceback."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ballonet.cli.streams import bad_input

if TYPE_CHECKING:
    from ballonet.cluster.client import KubernetesCluster

Value = TypeVar("Value")


def namespace_of(namespace: str | None, context: str | None) -> str:
    """Return the namespace that was given, else that of the context."""
    from ballonet.cluster.connection import context_namespace  # noqa: PLC0415 - slow to import

    return namespace or context_namespace(context)


def asked(context: str | None, call: Callable[[KubernetesCluster], Awaitable[Value]]) -> Value:
    """Return what a call to the API server gives; a refusal ends the program with exit code 2.

    Args:
        context: context of the kubeconfig; None for the current one, or the pod's own account.
        call: what to ask.
    """
    import asyncio  # noqa: PLC0415 - plans need neither this nor a client

    from ballonet.cluster.client import KubernetesCluster  # noqa: PLC0415
    from ballonet.cluster.connection import connect  # noqa: PLC0415
    from ballonet.cluster.port import ApiError  # noqa: PLC0415

    async def ask() -> Value:
        cluster = KubernetesCluster(partial(connect, context))
        try:
            return await call(cluster)
        finally:
            await cluster.close()

    try:
        return asyncio.run(ask())
    except ApiError as error:
        bad_input(error.message)
