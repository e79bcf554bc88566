"""Fakes that the controller tests share."""
