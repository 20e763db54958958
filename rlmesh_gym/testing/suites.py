"""The rules as test classes to subclass, for pytest and unittest: one test for each rule."""

from __future__ import annotations

import unittest
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rlmesh_gym.codec import EnvSpec
from rlmesh_gym.rpc import EnvSession, ModelSession
from rlmesh_gym.testing.env_probe import EnvProbe
from rlmesh_gym.testing.env_rules import ENV_RULES
from rlmesh_gym.testing.model_probe import ModelProbe
from rlmesh_gym.testing.model_rules import MODEL_RULES

if TYPE_CHECKING:
    from collections.abc import Callable

    from gymnasium import spaces

    from rlmesh_gym.testing.rules import Rule


class _EndpointRules:
    """What both suites have in common."""

    timeout: ClassVar[float] = 60.0
    """Seconds to wait for each answer."""
    connection: ClassVar[dict[str, Any]] = {}
    """How to connect: ``token`` and ``tls`` of a session."""

    def endpoint(self) -> str | AbstractContextManager[str]:
        """Return the address of the endpoint, or a context that serves it and gives the address."""
        raise NotImplementedError(f"{type(self).__name__}.endpoint() must return an address")

    def probe(self, address: str) -> Any:
        """Return the client that asks."""
        raise NotImplementedError

    def _check(self, rule: Rule[Any]) -> None:
        endpoint = self.endpoint()
        with nullcontext(endpoint) if isinstance(endpoint, str) else endpoint as address:
            with closing(self.probe(address)) as probe:
                result = rule.result(probe)
            if result.error is not None:
                raise result.error
            if result.outcome != "passed":
                raise unittest.SkipTest(f"{result.outcome}: {result.detail}")


class EnvEndpointRules(_EndpointRules):
    """The rules of an env endpoint, each a test; a subclass named ``Test…`` is found by pytest.

    What the endpoint lacks, and what does not concern it, is a skipped test that says so.

    Example:
        >>> from rlmesh_gym.testing import EnvEndpointRules, serving
        >>> class TestMyEnv(EnvEndpointRules):
        ...     def endpoint(self):
        ...         return serving(lambda: gymnasium.make("CartPole-v1"))
        >>> import gymnasium
        >>> TestMyEnv().test_partial_reset()
    """

    def probe(self, address: str) -> EnvProbe:
        """Return the client that asks."""
        return EnvProbe(partial(EnvSession.open, address, **self.connection), self.timeout)


class ModelEndpointRules(_EndpointRules):
    """The rules of a model endpoint, each a test; a subclass named ``Test…`` is found by pytest.

    A subclass says for which spaces the model was made, both of one lane.
    """

    single_observation_space: ClassVar[spaces.Space[Any]]
    single_action_space: ClassVar[spaces.Space[Any]]

    def probe(self, address: str) -> ModelProbe:
        """Return the client that asks."""
        spec = EnvSpec("", self.single_observation_space, self.single_action_space, {})
        connect = partial(ModelSession.open, address, **self.connection)
        return ModelProbe(connect, spec, self.timeout)


def _test_of(rule: Rule[Any]) -> Callable[[_EndpointRules], None]:
    def test(self: _EndpointRules) -> None:
        self._check(rule)

    test.__doc__ = rule.promise
    test.__name__ = f"test_{rule.name.replace(' ', '_')}"
    return test


def _add_tests(suite: type[_EndpointRules], rules: tuple[Rule[Any], ...]) -> None:
    for rule in rules:
        test = _test_of(rule)
        setattr(suite, test.__name__, test)


_add_tests(EnvEndpointRules, ENV_RULES)
_add_tests(ModelEndpointRules, MODEL_RULES)
