"""What holds for all tests here: laws have no time limit, because machines are of any speed.

The same examples each time, so that a run says something about the change and not about chance;
BALLONET_EXPLORE=1 draws new ones, which is how laws find faults.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "ballonet",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("BALLONET_EXPLORE") != "1",
)
settings.load_profile("ballonet")
