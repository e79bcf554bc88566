"""What the end-to-end scenarios are written with: client, builders, operators, audit log."""
