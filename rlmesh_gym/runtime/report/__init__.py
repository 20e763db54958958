"""What a run leaves behind: the report, its statistics, its files and its page."""
