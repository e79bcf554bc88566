"""Ballonet plans, enforces and verifies the KV cache budget of LLM inference pools."""

__version__ = "0.1.0"
