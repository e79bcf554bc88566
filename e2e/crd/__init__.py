"""Examples of the resource that the real API server accepts and refuses."""
