"""The public contract: the resource as pydantic models, its conditions, and the CRD generator."""
