"""The command line: plans without a cluster, and the operator."""
