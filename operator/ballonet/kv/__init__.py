"""From a model's geometry to cache layout and blocks, and from device memory to KV bytes."""
