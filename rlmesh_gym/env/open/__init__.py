"""From what the user typed to open sessions."""
