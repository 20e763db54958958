"""From the endpoint's autoreset mode to the one asked for: one class per kind of conversion."""
