"""Spaces and their values: one compiled codec per space."""
