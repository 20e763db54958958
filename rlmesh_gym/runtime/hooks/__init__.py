"""Who watches a run: the events, the hooks, and the recorders built on them."""
