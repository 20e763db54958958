"""Environments as an endpoint."""
