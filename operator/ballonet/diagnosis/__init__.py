"""What live numbers of engines mean: observations -> findings -> verdict and lever. Pure."""
