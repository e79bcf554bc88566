"""What holds for all tests here: laws have no time limit, because machines are of any speed.

The same examples each time, so that a run says something about the change and not about chance;
BALLONET_EXPLORE=1 draws new ones, which is how laws find faults.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ballonet",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("BALLONET_EXPLORE") != "1",
)
settings.load_profile("ballonet")

# Servers of tests are on loopback, where a proxy of the machine cannot go.
for proxy in ("http_proxy", "https_proxy", "all_proxy"):
    os.environ.pop(proxy, None)
    os.environ.pop(proxy.upper(), None)

LAWS = Path(__file__).parent / "property"
# A law tries hundreds of examples: a busy machine takes minutes over what a quiet one does in ten
# seconds.
LAW_TIMEOUT_SECONDS = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if LAWS in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LAW_TIMEOUT_SECONDS))
