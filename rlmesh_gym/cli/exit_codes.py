"""The exit codes, in one place: scripts depend on them."""

from __future__ import annotations

__all__ = [
    "EXIT_DONE",
    "EXIT_ENV_UNREACHABLE",
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_MISMATCH",
    "EXIT_MODEL_UNREACHABLE",
    "EXIT_USAGE",
]

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2  # What argparse uses; also for options that contradict each other.
EXIT_ENV_UNREACHABLE = 3
EXIT_MODEL_UNREACHABLE = 4
EXIT_MISMATCH = 5
EXIT_INTERRUPTED = 130  # What a shell reports for SIGINT.
