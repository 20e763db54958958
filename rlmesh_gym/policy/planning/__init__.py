"""Which lanes get a plan, and what each of them replays."""
