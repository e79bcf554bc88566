"""One module an engine: its arguments, its metric names, its words at start."""
