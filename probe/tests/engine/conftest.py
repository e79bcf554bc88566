"""Fixtures of the tests that run the real vLLM."""

from probe.tests.engine.fixtures import engine

__all__ = ["engine"]
