"""The Kubernetes API server behind a small port: client, events, lease."""
