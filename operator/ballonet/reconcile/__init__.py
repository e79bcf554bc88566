"""The control loop: gather what is, decide what should be, apply it, say it in status."""
