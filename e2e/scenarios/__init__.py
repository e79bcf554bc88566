"""What must hold end to end, a test each."""
