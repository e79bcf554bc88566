"""The control loop: gather what is, decide what should be, apply the difference, say it in status."""
