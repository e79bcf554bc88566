"""The real vLLM in pods: its environment and the tiny model as claims, a pool and a plain pod."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from e2e.cache import cache_root
from e2e.harness.api import VOLUME, Api, Json
from e2e.harness.pools import ENGINE_IMAGE, PoolBuilder, a_pool
from e2e.model import SLIDING_CONFIG_PATH, make_model
from e2e.vllm import build, environment_path

ENVIRONMENT_CLAIM: Final = "vllm-environment"
MODEL_CLAIM: Final = "model"
SLIDING_MODEL_CLAIM: Final = "model-sliding"
KV_BYTES: Final = 8 * 1024 * 1024
# Dummy weights, and no compilation: it would take three times as long to start.
ARGS: Final = ("--load-format", "dummy", "--enforce-eager")


def prepare_claims(api: Api, namespace: str) -> None:
    """Make the claims that engine pods of this namespace mount.

    The volumes are of type hostPath and bound to claims, because the `restricted` pod security
    level refuses a hostPath in a pod.
    """
    _claim(api, namespace, ENVIRONMENT_CLAIM, build())
    _claim(api, namespace, MODEL_CLAIM, make_model(cache_root() / "model"))
    sliding = make_model(cache_root() / "model-sliding", SLIDING_CONFIG_PATH)
    _claim(api, namespace, SLIDING_MODEL_CLAIM, sliding)


def a_vllm_pool(name: str) -> PoolBuilder:
    """A pool of the tiny model on the real vLLM: 128 KV blocks of 32 tokens."""
    template = {
        "spec": {
            "containers": [{"name": "engine", "volumeMounts": [_environment_mount()]}],
            "volumes": [_volume(ENVIRONMENT_CLAIM)],
        }
    }
    return (
        a_pool(name)
        .set("engine.image", ENGINE_IMAGE)
        .set("model.claim", {"name": MODEL_CLAIM})
        .args(*ARGS)
        .env(**_variables())
        .pod_template(template)
        .drain(30)
    )


def a_sliding_pool(name: str) -> PoolBuilder:
    """The same with a model of six groups, five of them with a sliding window."""
    return (
        a_vllm_pool(name)
        .set("model.config", {"inline": SLIDING_CONFIG_PATH.read_text()})
        .set("model.claim", {"name": SLIDING_MODEL_CLAIM})
    )


def plain_pod(name: str, namespace: str, ceiling_tokens: int) -> Json:
    """The same engine as anybody would start it: the same memory, no limit on sequences."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10_001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "engine",
                    "image": ENGINE_IMAGE,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["vllm", "serve", "/model"],
                    "args": [
                        *("--host", "0.0.0.0", "--port", "8000", "--served-model-name", "tiny"),
                        *("--max-model-len", str(ceiling_tokens), "--block-size", "32"),
                        *("--kv-cache-memory-bytes", str(KV_BYTES), "--enable-prefix-caching"),
                        *ARGS,
                    ],
                    "env": [
                        {"name": key, "value": value}
                        for key, value in {
                            **_variables(),
                            "HOME": "/tmp",
                            "XDG_CACHE_HOME": "/tmp/cache",
                            "HF_HUB_OFFLINE": "1",
                            "VLLM_NO_USAGE_STATS": "1",
                        }.items()
                    ],
                    "readinessProbe": {
                        "httpGet": {"path": "/health", "port": 8000},
                        "periodSeconds": 2,
                    },
                    "resources": {"limits": {"memory": "4Gi"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "readOnlyRootFilesystem": True,
                    },
                    "volumeMounts": [
                        _environment_mount(),
                        {"name": MODEL_CLAIM, "mountPath": "/model", "readOnly": True},
                        {"name": "tmp", "mountPath": "/tmp"},
                        {"name": "shm", "mountPath": "/dev/shm"},
                    ],
                }
            ],
            "volumes": [
                _volume(ENVIRONMENT_CLAIM),
                _volume(MODEL_CLAIM),
                {"name": "tmp", "emptyDir": {}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
            ],
        },
    }


def _variables() -> dict[str, str]:
    return {
        "PATH": f"{environment_path()}/bin:/usr/bin:/bin",
        # One process less: it starts in two thirds of the time and takes half a GiB less.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }


def _environment_mount() -> Json:
    # At its own path: the scripts of a virtual environment name it.
    return {"name": ENVIRONMENT_CLAIM, "mountPath": str(environment_path()), "readOnly": True}


def _volume(claim: str) -> Json:
    return {"name": claim, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}


def _claim(api: Api, namespace: str, name: str, folder: Path) -> None:
    size = {"storage": "10Gi"}
    modes = ["ReadOnlyMany"]
    volume = f"{namespace}-{name}"
    api.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume, "labels": {"ballonet.io/e2e": "true"}},
            "spec": {
                "capacity": size,
                "accessModes": modes,
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "hostPath": {"path": str(folder), "type": "Directory"},
                "claimRef": {"namespace": namespace, "name": name},
            },
        }
    )
    api.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "storageClassName": "",
                "volumeName": volume,
                "accessModes": modes,
                "resources": {"requests": size},
            },
        }
    )


def remove_volumes(api: Api, namespace: str) -> None:
    """Delete the volumes of a namespace's claims; their folders stay."""
    for name in (ENVIRONMENT_CLAIM, MODEL_CLAIM, SLIDING_MODEL_CLAIM):
        api.delete(VOLUME, None, f"{namespace}-{name}")
