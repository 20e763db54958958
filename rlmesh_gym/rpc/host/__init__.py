"""A server's side of the wire."""
