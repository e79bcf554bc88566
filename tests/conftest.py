"""What holds for all tests here: laws have no time limit, because machines are of any speed."""

from hypothesis import HealthCheck, settings

settings.register_profile("ballonet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ballonet")
