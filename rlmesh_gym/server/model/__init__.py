"""Models as an endpoint."""
