"""The import-linter contract that modules do not import each other in a circle.

``acyclic_siblings``, which comes with import-linter, also wants it of whole folders.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from importlinter import Contract, ContractCheck, fields, output
from importlinter.application import contract_utils
from importlinter.application.contract_utils import AlertLevel

if TYPE_CHECKING:
    from grimp import ImportGraph


class NoCircles(Contract):
    """Fails on a circle of imports, those under ``TYPE_CHECKING`` included, and names one."""

    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        contract_utils.remove_ignored_imports_and_report(
            graph,
            self.ignore_imports,  # type: ignore[arg-type]
            AlertLevel.ERROR,
        )
        imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            return ContractCheck(kept=False, metadata={"circle": error.args[1]})
        return ContractCheck(kept=True)

    def render_broken_contract(self, check: ContractCheck) -> None:
        output.print_error(" is imported by ".join(check.metadata["circle"]))
