from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ballonet.catalog import Accelerator, Catalog, CatalogModel, Confidence, InvalidCatalog, suggest
from ballonet.catalog.flags import (
    vllm_architecture_ranges,
    vllm_backend_ranges,
    vllm_flag_ranges,
    vllm_registry_versions,
    vllm_sampled_versions,
    vllm_switches,
    vllm_transformers_architectures,
    vllm_unstaged_ranges,
)
from ballonet.kv.units import GIB

CATALOG = Catalog.builtin()
GPUS = tuple(device for device in CATALOG.accelerators if device.device == "gpu")
WHOLE = tuple(device for device in GPUS if device.slice_of is None)
SLICES = tuple(device for device in GPUS if device.slice_of is not None)


def device_of(name: str) -> Accelerator:
    device = CATALOG.accelerator(name)
    assert device is not None, name
    return device


def nominal_gb(device: Accelerator) -> int:
    found = re.search(r"(\d+)gb$", device.name, re.IGNORECASE)
    assert found is not None
    return int(found[1])


# --- devices -------------------------------------------------------------------------------------


def test_there_are_as_many_devices_and_models_as_promised() -> None:
    assert len(WHOLE) == 76
    assert len(SLICES) == 26
    assert device_of("CPU").device == "cpu"


@pytest.mark.parametrize("device", GPUS, ids=lambda device: device.name)
def test_a_gpu_is_plausible_and_sourced(device: Accelerator) -> None:
    if device.memory_bytes is None:
        assert device.memory_unknown
    else:
        # Programs see less than the name says, GB or GiB, but rarely less than 85 %.
        assert nominal_gb(device) * 10**9 * 85 // 100 < device.memory_bytes.low
        assert device.memory_bytes.high <= nominal_gb(device) * GIB
        assert device.sources["memory_mib"].confidence is not Confidence.RECALLED
        if device.driver_mib is not None and device.vendor == "nvidia":
            assert device.memory_mib is not None
            assert device.driver_mib - device.memory_mib[1] > 200
    assert (device.compute is not None) is (device.vendor == "nvidia")


@pytest.mark.parametrize("device", SLICES, ids=lambda device: device.name)
def test_a_slice_stands_alone_on_a_device_that_is_known(device: Accelerator) -> None:
    whole = device_of(str(device.slice_of))
    assert device.max_per_node == 1
    assert device.architecture == whole.architecture
    assert device.resource_name == f"nvidia.com/mig-{device.name.rsplit('-', 1)[1]}"
    if device.memory_bytes is not None and whole.memory_bytes is not None:
        assert device.memory_bytes.high <= whole.memory_bytes.high


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("h100-80gb", "H100-80GB"),
        ("NVIDIA-H100-80GB-HBM3", "H100-80GB"),
        ("NVIDIA-H100-80GB-HBM3-SHARED", "H100-80GB"),
        ("NVIDIA-H100-PCIe", "H100-PCIE-80GB"),
        ("nvidia a100-sxm4-40gb", "A100-40GB"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "A100-80GB-MIG-1g.10gb"),
        ("NVIDIA-A100-80GB-PCIe-MIG-1g.10gb-SHARED", "A100-80GB-MIG-1g.10gb"),
        ("AMD_Instinct_MI300X_OAM", "MI300X-192GB"),
        ("DGX-Spark", "GB10-128GB"),
        ("h100-sxm-80", "H100-80GB"),
        ("T4", "T4-16GB"),
        ("cpu", "CPU"),
    ],
)
def test_a_device_is_found_by_alias_and_by_what_kubernetes_calls_it(called: str, name: str) -> None:
    assert device_of(called).name == name


def test_a_slice_that_nobody_knows_is_not_taken_for_the_whole_device() -> None:
    assert CATALOG.accelerator("NVIDIA-H100-80GB-HBM3-MIG-9g.99gb") is None


def test_a_name_of_two_devices_is_no_alias() -> None:
    assert CATALOG.accelerator("A100") is None
    assert set(CATALOG.similar_accelerators("A100")) >= {"A100-40GB", "A100-80GB"}


@pytest.mark.parametrize(
    ("name", "matrix", "cache"),
    [
        ("T4", False, False),
        ("A100-80GB", False, True),
        ("L4", True, True),
        ("H100-80GB", True, True),
        ("MI250X-64GB", False, False),
        ("MI300X-192GB", True, True),
        ("CPU", None, False),
    ],
)
def test_fp8_caches_need_no_fp8_matrix_units(name: str, matrix: bool | None, cache: bool) -> None:
    device = device_of(name)
    assert (device.architecture and device.architecture.fp8_matrix) == matrix
    assert device.fp8_kv_cache is cache


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("H100-80", "H100-80GB"), ("L40S-48", "L40S-48GB"), ("RTX-5090-32G", "RTX-5090-32GB")],
)
def test_suggestions_are_near(typed: str, meant: str) -> None:
    assert CATALOG.similar_accelerators(typed)[0] == meant


def test_there_is_no_suggestion_for_what_is_like_nothing() -> None:
    assert CATALOG.similar_accelerators("zzzzzz") == []
    assert suggest("", [device.name for device in CATALOG.accelerators]) == []


# --- models --------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", CATALOG.models, ids=lambda model: model.name)
def test_a_model_can_be_read_and_its_weights_fit_its_shape(model: CatalogModel) -> None:
    stored = model.geometry.stored_weights
    if model.weights_bytes is not None and stored is not None:
        # Boots log up to 3 % more than the shape has; embedding models are served without a head.
        assert 92 * stored.low <= 100 * model.weights_bytes <= 103 * stored.high


def test_models_are_found_by_alias_and_without_regard_to_case() -> None:
    assert CATALOG.model("qwen/qwen3-32b") is CATALOG.model("Qwen/Qwen3-32B")
    instruct = CATALOG.model("meta-llama/Llama-3.1-70B-Instruct")
    assert instruct is not None
    assert instruct.name == "meta-llama/Llama-3.3-70B-Instruct"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("Qwen3-32B", ["Qwen/Qwen3-32B"]),
        ("qwen/qwen3-8", ["Qwen/Qwen3-8B"]),
        ("meta-lama/Llama-3.1-8B-Instruct", ["meta-llama/Llama-3.1-8B-Instruct"]),
        ("llama-3.3-70b", ["meta-llama/Llama-3.3-70B-Instruct"]),
        ("mistralai/Mistral-9B-v0.3", []),
        ("Qwen/Qwen3-33B", []),
        ("", []),
    ],
)
def test_only_another_spelling_of_a_model_is_suggested(typed: str, meant: list[str]) -> None:
    assert CATALOG.similar_models(typed)[: len(meant) or None] == meant


# --- entries of users ----------------------------------------------------------------------------

MY_GPU: dict[str, Any] = {
    "name": "X1-48GB",
    "product": "Vendor X1",
    "vendor": "nvidia",
    "aliases": ["X1"],
    "memory_mib": [45000, 45100],
    "architecture": "9.0",
    "resource_name": "nvidia.com/gpu",
    "node_sizes": [8],
    "sources": {
        "memory_mib": "log: torch on one of our nodes, driver 580",
        "architecture": "sheet: data sheet",
        "resource_name": "sheet: device plugin",
        "node_sizes": "sheet: order form",
    },
}
MY_MODEL: dict[str, Any] = {
    "name": "acme/chat-8b",
    "config": {
        **{"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32},
        **{"num_key_value_heads": 8, "hidden_size": 4096, "vocab_size": 128256},
        **{"intermediate_size": 14336, "torch_dtype": "bfloat16"},
    },
    "sources": {"config": "config file: acme/chat-8b at revision 1"},
}


def changed(entry: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**entry, **changes}.items() if value is not None}


def problems(*, accelerators: Any = (), models: Any = ()) -> tuple[str, ...]:
    text = json.dumps({"accelerators": list(accelerators), "models": list(models)})
    with pytest.raises(InvalidCatalog) as refused:
        CATALOG.with_entries(text, "mine.yaml")
    return refused.value.problems


def test_a_file_adds_devices_and_models_and_leaves_the_catalog_as_it_was() -> None:
    text = json.dumps({"accelerators": [MY_GPU], "models": [MY_MODEL]})
    mine = CATALOG.with_entries(text, "mine.yaml")
    device = mine.accelerator("x1")
    assert device is not None
    assert device.memory_bytes is not None
    assert device.memory_bytes.low == 45000 * 1024**2
    assert device.fp8_kv_cache
    model = mine.model("Acme/Chat-8B")
    assert model is not None
    assert model.geometry.kv_heads == 8
    assert mine.accelerator("H100-80GB") is CATALOG.accelerator("H100-80GB")
    assert CATALOG.accelerator("x1") is None


def test_an_entry_takes_the_place_of_one_of_the_same_name() -> None:
    text = json.dumps({"accelerators": [changed(MY_GPU, name="L4-24GB", aliases=None)]})
    mine = CATALOG.with_entries(text, "mine.yaml")
    device = mine.accelerator("l4-24gb")
    assert device is not None
    assert device.product == "Vendor X1"
    assert len(mine.accelerators) == len(CATALOG.accelerators)
    assert mine.accelerator("NVIDIA-L4") is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"memory_mib": None}, "sources.memory_mib belongs to no fact"),
        ({"memory_mib": [45100, 45000]}, "the lowest comes first"),
        ({"memory_mib": [45000.5, 45100]}, "memory_mib[0]: 45000.5: must be a whole number"),
        ({"memory_mib": "48GB"}, "memory_mib: '48GB'"),
        ({"architecture": "9.9"}, "architecture: '9.9': is not known: use one of 7.0"),
        ({"memroy_mib": 1}, "memroy_mib: is not known: did you mean memory_mib?"),
        ({"vendor": "tpu"}, "vendor: 'tpu': should be 'nvidia', 'amd', 'intel' or 'cpu'"),
        ({"name": None}, "name: is missing: give it"),
        ({"name": "no blanks"}, "name: 'no blanks': use letters, digits, -, _ and . without"),
        ({"name": 7}, "name: 7: must be text: write it in quotes"),
        ({"node_sizes": 8}, "node_sizes: 8: must be a list"),
        ({"unified_memory": "yes"}, "unified_memory: 'yes': must be true or false"),
        ({"name": "cpu"}, "name: CPU is what vendor cpu is called, and nothing else"),
        ({"vendor": "cpu"}, "name: CPU is what vendor cpu is called, and nothing else"),
        ({"aliases": ["H100"]}, "'H100' belongs to H100-80GB: remove it from one of them"),
        ({"sources": {}}, "is given without a source: write sources.architecture"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused_by_field(
    changes: dict[str, Any], says: str
) -> None:
    found = problems(accelerators=[changed(MY_GPU, **changes)])
    assert any(says in problem for problem in found), found
    assert all(problem.startswith("mine.yaml: ") for problem in found)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("recalled", "a recalled figure carries no promise"),
        ("nvidia-smi", "must begin with one of log, sheet"),
        ("log:", "says nothing after the colon"),
    ],
)
def test_memory_needs_a_source_that_carries_a_promise(source: str, says: str) -> None:
    sources = {**MY_GPU["sources"], "memory_mib": source}
    assert any(says in p for p in problems(accelerators=[changed(MY_GPU, sources=sources)]))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"config": {"model_type": "llama"}}, "models (acme/chat-8b): config.json"),
        ({"config": []}, "config: a list of 0: must be an object"),
        ({"weights_bytes": 0}, "weights_bytes: 0"),
        ({"aliases": ["Qwen/Qwen3-8B"]}, "belongs to Qwen/Qwen3-8B"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_by_field(
    changes: dict[str, Any], says: str
) -> None:
    found = problems(models=[changed(MY_MODEL, **changes)])
    assert any(says in problem for problem in found), found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "must be an object with architectures, accelerators, models"),
        ("gpus: []", "gpus: is not known: use architectures, accelerators, models"),
        ("models: {}", "models: must be a list of entries"),
        ("models: [", "is not YAML"),
        ("", "holds 0 documents: write one"),
        ("{}\n---\n{}", "holds 2 documents: write one"),
        ("models: [1]", "models[0]"),
    ],
)
def test_what_is_no_catalog_file_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidCatalog) as refused:
        CATALOG.with_entries(text, "mine.yaml")
    assert any(says in problem for problem in refused.value.problems)


def test_every_problem_of_a_file_is_told_with_its_entry() -> None:
    found = problems(
        accelerators=[changed(MY_GPU, vendor="tpu"), changed(MY_GPU, name="Y1", aliases=[7])],
        models=[changed(MY_MODEL, config=None)],
    )
    assert [problem.partition(": ")[2].split(": ")[0] for problem in found] == [
        "accelerators[0] ('X1-48GB')",
        "accelerators[1] ('Y1')",
        "models[0] ('acme/chat-8b')",
    ]


# --- flags ---------------------------------------------------------------------------------------


def test_flag_ranges_lie_between_sampled_versions() -> None:
    sampled = vllm_sampled_versions()
    for flag, ranges in vllm_flag_ranges().items():
        assert re.fullmatch(r"--[a-z0-9-]+", flag)
        for first, last in ranges:
            assert sampled.index(first) <= sampled.index(last)
    assert vllm_switches() <= vllm_flag_ranges().keys()


def test_models_and_backends_lie_between_versions_that_were_read() -> None:
    read = vllm_registry_versions()
    for ranges in (vllm_architecture_ranges(), vllm_backend_ranges(), vllm_unstaged_ranges()):
        for name, spans in ranges.items():
            assert name.isidentifier()
            for first, last in spans:
                assert read.index(first) <= read.index(last)
    # What every version has is no news, and would be in the table for nothing.
    assert ((read[0], read[-1]),) not in vllm_architecture_ranges().values()
    assert vllm_transformers_architectures() <= vllm_architecture_ranges().keys()
