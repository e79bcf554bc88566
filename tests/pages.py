"""Pages of metrics as engines showed them."""

from __future__ import annotations

from pathlib import Path

# A whole page of vLLM 0.32.0 on CPU, taken after a fan-out with two preemptions.
REAL_PAGE = (Path(__file__).parent / "unit" / "data" / "vllm_0.32.0_metrics.txt").read_text()
