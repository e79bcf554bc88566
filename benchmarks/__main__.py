"""`make bench`: all benchmarks; they print figures and judge nothing."""

from __future__ import annotations

from benchmarks import cluster, live, plan


def main() -> None:
    """Run one after the other."""
    plan.main()
    live.main()
    cluster.main()


if __name__ == "__main__":
    main()
