"""A proxy between the operator and the API server that counts calls and makes faults on demand."""
