"""`python -m e2e.load fanout|steady --url URL ...`: run a load and print its result as JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict
from pathlib import Path

from e2e.load.fanout import fan_out, planner_and_workers, sequences_of_budget
from e2e.load.steady import steady_load


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.load", description=__doc__)
    parser.add_argument("load", choices=["fanout", "steady"])
    parser.add_argument("--url", required=True, help="base URL of the engine or its Service")
    parser.add_argument("--model", default="tiny", help="served model name (default: tiny)")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--metrics-url", action="append", default=[], help="default: URL/metrics")
    parser.add_argument("--budget", type=Path, help="fanout: a pool's budget.json")
    parser.add_argument("--ceiling", type=int, default=1024, help="fanout: tokens a sequence")
    parser.add_argument("--workers", type=int, default=5, help="fanout: sequences beside planner")
    parser.add_argument("--seconds", type=float, default=30, help="steady: how long")
    arguments = parser.parse_args()
    url = arguments.url.rstrip("/")
    if arguments.load == "fanout":
        sequences = (
            sequences_of_budget(json.loads(arguments.budget.read_text()))
            if arguments.budget
            else planner_and_workers(arguments.ceiling, arguments.workers)
        )
        load = fan_out(
            url,
            sequences,
            model=arguments.model,
            metrics_urls=arguments.metrics_url,
            seed=arguments.seed,
        )
        print(json.dumps(asdict(asyncio.run(load))))
    else:
        steady = steady_load(url, model=arguments.model, seconds=arguments.seconds)
        print(json.dumps(asdict(asyncio.run(steady))))


if __name__ == "__main__":
    main()
