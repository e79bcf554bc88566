"""The operator process: kopf glue, settings, health, metrics, logging."""
