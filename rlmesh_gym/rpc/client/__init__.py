"""A client's sessions: connecting, sending, waiting."""
