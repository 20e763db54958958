"""The rules that a model endpoint keeps, each a function that asks for what the rule promises."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from rlmesh_gym._proto.spaces.v1 import value_pb2
from rlmesh_gym.codec import EnvSpec
from rlmesh_gym.errors import ModelError
from rlmesh_gym.lanes import mint_episode_id
from rlmesh_gym.rpc import ModelSession
from rlmesh_gym.testing.model_probe import ModelProbe
from rlmesh_gym.testing.rules import first_lines, rules_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gymnasium import spaces

    from rlmesh_gym.rpc import TLSLike
    from rlmesh_gym.testing.rules import Rule, RuleResult


_ROWS = 3
_HORIZON = 4


def check_capabilities(probe: ModelProbe) -> None:
    """The handshake tells what the model can do, each capability as "true"."""
    for name in ("observation_history", "concurrent_predict"):
        value = probe.session.capabilities.get(name, "true")
        probe.require(value == "true", f"capability {name} is {value!r}, not 'true'")


def check_resolve(probe: ModelProbe) -> None:
    """An environment is taken in, and once more under the same id."""
    probe.resolve()
    probe.resolve()


def check_predict(probe: ModelProbe) -> None:
    """A prediction has an action of the action space in each frame, one frame at least."""
    probe.resolve()
    for _ in range(2):
        probe.check_frames(probe.predict(1), 1)


def check_rows(probe: ModelProbe) -> None:
    """Several rows in one request are answered with one action each."""
    probe.resolve()
    failures: list[ModelError] = []
    for rows in (_ROWS, 1, _ROWS):
        try:
            probe.check_frames(probe.predict(rows), rows)
        except ModelError as error:  # noqa: PERF203 - three times
            if rows == 1:
                raise
            failures.append(error)
    if len(failures) == 2:  # noqa: PLR2004 - whenever it was asked for several
        raise probe.lacking(f"it takes one row at a time: {failures[0]}")
    if failures:
        raise failures[0]


def check_horizon(probe: ModelProbe) -> None:
    """With a longer execution horizon it still gives whole frames, one at least."""
    probe.resolve(execution_horizon=_HORIZON)
    probe.check_frames(probe.predict(1), 1)


def check_episodes(probe: ModelProbe) -> None:
    """Ends of episodes are heard: of one, of unknown ones, of all."""
    probe.resolve()
    playing = [mint_episode_id()]
    for ended in (playing, [mint_episode_id()], []):
        probe.predict(1, playing)
        probe.wait(probe.session.reset_adapter(probe.env_id, ended))
    probe.check_frames(probe.predict(1, playing), 1)


def check_unknown_environments(probe: ModelProbe) -> None:
    """A prediction for an environment that was never taken in is refused; the session goes on."""
    probe.refused(lambda: probe.ask(1, env_id="nobody-knows-this-one"), "NOT_CONFIGURED")
    check_predict(probe)
    probe.told_apart()


def check_bad_observations(probe: ModelProbe) -> None:
    """An observation of another form is refused before the model sees it; the session goes on."""
    probe.resolve()
    good = list(probe.sample(1).leaves)
    wrong = [[*good, b""]]
    if good:
        wrong += [[], [*good[:-1], good[-1] + b"\0"]]
    for leaves in wrong:
        bad = value_pb2.SpaceValue(leaves=leaves)
        probe.refused(partial(probe.ask, 1, observation=bad), "INVALID_REQUEST")
    probe.check_frames(probe.predict(1), 1)
    probe.told_apart()


def check_release(probe: ModelProbe) -> None:
    """After its release an environment is unknown, until it is taken in once more."""
    probe.resolve()
    probe.predict(1)
    probe.wait(probe.session.release_adapter(probe.env_id, "done"))
    probe.refused(lambda: probe.ask(1), "NOT_CONFIGURED")
    probe.resolve()
    probe.check_frames(probe.predict(1), 1)
    probe.told_apart()


def check_lost_streams(probe: ModelProbe) -> None:
    """What was taken in outlives the stream: a client goes on after it lost its connection."""
    probe.resolve()
    probe.predict(1)
    probe.session.hang_up()
    probe.check_frames(probe.predict(1), 1)


def check_several_clients(probe: ModelProbe) -> None:
    """Several clients, each with an environment of its own, are served at the same time."""
    probe.resolve()
    with closing(ModelProbe(probe.connect, probe.spec, probe.timeout)) as other:
        other.rule = probe.rule
        other.resolve()
        for pending in [probe.ask(1), other.ask(1), probe.ask(1)]:
            probe.check_frames(probe.wait(pending), 1)
    probe.check_frames(probe.predict(1), 1)


MODEL_RULES: tuple[Rule[ModelProbe], ...] = rules_of(
    [
        check_capabilities,
        check_resolve,
        check_predict,
        check_rows,
        check_horizon,
        check_episodes,
        check_unknown_environments,
        check_bad_observations,
        check_release,
        check_lost_streams,
        check_several_clients,
    ]
)
"""Every rule, in the order in which they are checked, each in a session of its own."""


def model_rule_results(
    address: str,
    single_observation_space: spaces.Space[Any],
    single_action_space: spaces.Space[Any],
    *,
    token: str | None = None,
    tls: TLSLike = None,
    timeout: float = 60.0,
) -> Iterator[RuleResult]:
    """Check rule after rule on the model endpoint at ``address``, and give the result of each.

    It asks for a few dozen predictions on random observations.

    Args:
        address: The endpoint.
        single_observation_space: What a lane of the model's environment observes.
        single_action_space: What it can do.
        token: What the endpoint asks for, else ``RLMESH_GYM_TOKEN``.
        tls: How to connect; see :class:`~rlmesh_gym.rpc.TLSConfig`.
        timeout: Seconds to wait for each answer.

    Raises:
        RemoteError: It cannot be reached.
    """
    connect = partial(ModelSession.open, address, token=token, tls=tls)
    spec = EnvSpec("", single_observation_space, single_action_space, {})
    for rule in MODEL_RULES:
        with closing(ModelProbe(connect, spec, timeout)) as probe:
            result = rule.result(probe)
        yield result


def check_model_endpoint(
    address: str,
    single_observation_space: spaces.Space[Any],
    single_action_space: spaces.Space[Any],
    *,
    token: str | None = None,
    tls: TLSLike = None,
    timeout: float = 60.0,
) -> list[str]:
    """Check that the model endpoint at ``address`` keeps to the protocol.

    Arguments are those of :func:`model_rule_results`.

    Returns:
        The first line of every rule that was checked.

    Raises:
        BrokenRuleError: The endpoint breaks a rule; the error names it.
        RemoteError: It could not be reached or gave up.
    """
    spaces_of = (single_observation_space, single_action_space)
    how: dict[str, Any] = {"token": token, "tls": tls, "timeout": timeout}
    return first_lines(model_rule_results(address, *spaces_of, **how))
