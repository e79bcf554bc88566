"""Load on an engine: the fan-out of an agent run, and a steady load that must lose nothing."""
