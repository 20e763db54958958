"""What the protocol's rules are made of: asking an endpoint, and one result for each rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from rlmesh_gym.errors import EnvError, Error, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rlmesh_gym.rpc import Pending


Outcome: TypeAlias = Literal["passed", "failed", "lacking", "skipped"]
"""``lacking``: the endpoint does not offer it. ``skipped``: there was nothing to look at."""


class BrokenRuleError(AssertionError):
    """An endpoint does not keep to a rule of the protocol.

    Attributes:
        rule: Name of the rule.
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


class _Ended(Exception):  # noqa: N818 - the rule is neither kept nor broken
    """The rule is over before its end."""

    outcome: Outcome = "skipped"


class _Lacking(_Ended):
    outcome = "lacking"


@dataclass(frozen=True)
class RuleResult:
    """What came of one rule.

    Attributes:
        rule: Its name, such as ``"partial reset"``.
        promise: What it says, in one sentence.
        outcome: ``"passed"``, ``"failed"``, ``"lacking"`` or ``"skipped"``.
        detail: What is wrong, lacking, or why it was skipped; empty when passed.
        error: What was raised by a rule that failed.
    """

    rule: str
    promise: str
    outcome: Outcome
    detail: str = ""
    error: Exception | None = None


class Probe:
    """A client of one endpoint that names the rule which is checked in its errors.

    ``timeout`` bounds the wait for each answer, in seconds.
    """

    def __init__(self, timeout: float) -> None:
        self.rule: str = ""
        self.timeout = timeout

    def wait(self, pending: Pending[Any]) -> Any:
        """The answer, within the probe's timeout."""
        return pending.result(self.timeout)

    def require(self, condition: object, message: str) -> None:
        """Raise :class:`BrokenRuleError` unless ``condition`` holds."""
        if not condition:
            raise BrokenRuleError(self.rule, message)

    def require_equal(self, name: str, got: Any, expected: Any) -> None:
        """Require that a value is the expected one."""
        self.require(got == expected, f"{name} is {got!r}, expected {expected!r}")

    def refuses(self, call: Callable[[], Pending[Any]], *codes: str) -> None:
        """Require that ``call`` is answered with a recoverable error of one of ``codes``."""
        expected = " or ".join(codes)
        try:
            self.wait(call())
        except (EnvError, ModelError) as error:
            self.require(error.code in codes, f"expected the code {expected}, got {error}")
            self.require(error.is_recoverable, f"expected a recoverable error, got {error}")
            return
        raise BrokenRuleError(self.rule, f"expected an error {expected}, got an answer")

    def lacking(self, what: str) -> Exception:
        """What to raise where the endpoint does not offer what the rule is about."""
        return _Lacking(what)

    def skipped(self, why: str) -> Exception:
        """What to raise where there is nothing to look at."""
        return _Ended(why)


ProbeT = TypeVar("ProbeT", bound=Probe)


@dataclass(frozen=True)
class Rule(Generic[ProbeT]):
    """A function that asks an endpoint for what the rule promises, which its docstring says."""

    check: Callable[[ProbeT], None]

    @property
    def name(self) -> str:
        """Such as ``"partial reset"``."""
        return self.check.__name__.removeprefix("check_").replace("_", " ")

    @property
    def promise(self) -> str:
        """The first sentence of the docstring."""
        return (self.check.__doc__ or self.name).splitlines()[0]

    def result(self, probe: ProbeT) -> RuleResult:
        """Check it; what goes wrong stands in the result."""
        probe.rule = self.name
        outcome: Outcome = "passed"
        detail = ""
        failure: Exception | None = None
        try:
            self.check(probe)
        except _Ended as ended:
            outcome, detail = ended.outcome, str(ended)
        except BrokenRuleError as error:
            outcome, failure = "failed", error
            detail = str(error).removeprefix(f"{self.name}: ")
        except Error as error:  # The endpoint gave up, or says what nobody understands.
            outcome, detail, failure = "failed", str(error), error
        return RuleResult(self.name, self.promise, outcome, detail, failure)


def rules_of(checks: Sequence[Callable[[ProbeT], None]]) -> tuple[Rule[ProbeT], ...]:
    """Make rules of functions."""
    return tuple(Rule(check) for check in checks)


def first_lines(results: Iterator[RuleResult]) -> list[str]:
    """Return the promise of every rule that was checked; raise the first failure."""
    promises = []
    for result in results:
        if result.error is not None:
            raise result.error
        promises.append(result.promise)
    return promises
