"""The one exception of this package."""


class ClusterError(Exception):
    """The cluster cannot do what was asked. The message says why and what to do next."""
