"""Traces of the real engine: what its metrics say under each kind of load, kept as small files.

The diagnosis is tested against them, and the stub engine plays them (`e2e/harness/player.py`).
"""
