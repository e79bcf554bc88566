"""The demo: a topology that does not fit, its remedy, and what both do to a real engine."""
