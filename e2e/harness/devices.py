"""A device that the catalog does not know: this machine's own memory, as if it were a GPU's."""

from __future__ import annotations

import os
from typing import Final

from e2e.harness.api import Json

MACHINE: Final = "E2E-Machine"


def catalog_of_this_machine() -> Json:
    """Return a catalog in which the device's memory is what the CPU engine finds in the machine.

    It takes the fake GPUs of the node. Its KV memory is then what the engine finds out by itself at
    its start: a share of all memory, less what the processes hold. That is more than a GPU would
    hold for the same model, so the plan has to allow for a device of half the size.
    """
    mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    facts = ("memory_mib", "architecture", "resource_name", "node_sizes")
    return {
        "accelerators": [
            {
                "name": MACHINE,
                "product": "This machine",
                "vendor": "nvidia",
                "memory_mib": [mib // 2, mib + 16],
                "architecture": "9.0",
                "resource_name": "nvidia.com/gpu",
                "node_sizes": [4],
                "sources": dict.fromkeys(facts, "log: sysconf of this machine"),
            }
        ]
    }
