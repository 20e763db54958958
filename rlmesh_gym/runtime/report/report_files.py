"""A report as files: ``report.json``, ``report.html``, ``episodes.csv``, ``episodes.jsonl``.

Each file is written beside its place and moved there, so that a reader never sees half of one.
"""

from __future__ import annotations

import csv
import io
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.plain_data import jsonable
from rlmesh_gym.runtime.report.html_report import html_report
from rlmesh_gym.runtime.report.records import EpisodeJournal
from rlmesh_gym.runtime.report.runtime_report import RuntimeReport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["episodes_csv", "read_report", "write_report"]

EPISODES_CSV = "episodes.csv"
REPORT_JSON = "report.json"
REPORT_HTML = "report.html"


def write_report(
    report: RuntimeReport,
    directory: str | os.PathLike[str],
    *,
    journal: EpisodeJournal | None = None,
) -> Path:
    """Write a report into a directory, which is made when missing.

    ``report.json``, ``report.html`` and ``episodes.csv`` are replaced; finished episodes that
    ``episodes.jsonl`` has not yet are added to it.

    Args:
        report: What to write.
        directory: Where to.
        journal: That of the directory, if it is open; it stays open.

    Returns:
        The path of ``report.html``.

    Raises:
        ConfigurationError: The directory cannot be written.
    """
    target = Path(directory)
    rows = [episode.to_dict() for episode in report.episodes]
    texts = {
        REPORT_JSON: json.dumps(report.to_dict(), allow_nan=False, indent=1),
        EPISODES_CSV: episodes_csv(rows),
        REPORT_HTML: html_report(report),
    }
    try:
        with EpisodeJournal(target) if journal is None else nullcontext(journal) as opened:
            for row in rows:
                # A resumed run plays cut-off episodes anew.
                if not row["interrupted"]:
                    opened.append(row)
        for name, text in texts.items():
            _replace(target / name, text)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write the report to {target}: {error.strerror or error}"
        ) from error
    return target / REPORT_HTML


def read_report(directory: str | os.PathLike[str]) -> RuntimeReport | None:
    """The report of a directory, None when the run left none (it was killed).

    Raises:
        ConfigurationError: ``report.json`` is there and is no report.
    """
    path = Path(directory) / REPORT_JSON
    try:
        data = json.loads(path.read_bytes())
        return RuntimeReport.from_dict(data)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read as a report: {type(error).__name__}: {error}"
        ) from error


def episodes_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a CSV table; the columns are the keys of all rows, nested values JSON text."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    plain = jsonable(value)
    if isinstance(plain, (dict, list)):
        return json.dumps(plain, ensure_ascii=False)
    return "" if plain is None else plain


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(text.encode("utf-8", "replace"))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
