"""``rlmesh-gym merge``: the episodes of several runs as one report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlmesh_gym.cli.exit_codes import Exit
from rlmesh_gym.cli.output import show
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.runtime.report.formatting import text_table
from rlmesh_gym.runtime.report.records import EPISODES_JSONL
from rlmesh_gym.runtime.report.report_files import merge_episodes, merged_report, write_report

if TYPE_CHECKING:
    import argparse


EPILOG = """\
An episode is known by its environment, seed and id. The same three in two places are one episode
(a duplicate, kept once); the same environment and seed under another id is a repeat, and kept.

  rlmesh-gym merge machine-a/out machine-b/out --out all/
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="DIRECTORY",
        help="a --report directory, or its episodes.jsonl",
    )
    parser.add_argument(
        "--out", required=True, metavar="DIRECTORY", help="where to write the joined report"
    )


def execute(options: argparse.Namespace) -> int:
    """Read, join, write, and say what was found."""
    target = Path(options.out)
    if (target / EPISODES_JSONL).exists():
        raise ConfigurationError(
            f"{target} holds a report already; name a new directory after --out"
        )
    merged = merge_episodes(options.sources)
    report = merged_report(options.sources, merged)
    write_report(report, target)
    counts = [(source, f"{count:,}") for source, count in merged.per_source.items()]
    show(text_table(("source", "new episodes"), counts))
    show(
        f"\n{len(merged.rows):,} episodes, {merged.duplicates:,} duplicates left out, "
        f"{merged.repeats:,} repeats kept"
    )
    if merged.conflicts:
        show(f"{len(merged.conflicts):,} duplicates differ in content; the first one was kept")
    if merged.damaged:
        show(f"{merged.damaged:,} unreadable lines were passed over")
    show(f"\n{report}\n\nwritten to {target}")
    return Exit.DONE
