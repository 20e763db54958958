"""Where a server's environments come from: one for all sessions, or a new one for each."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from rlmesh_gym._proto.core.v1 import env_contract_pb2
from rlmesh_gym.codec import encode_contract, plain_spec, without_unsupported
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.rpc import ARRAYS, FINAL_OBS, PARTIAL_RESET, SPACES, SUBSET_STEP
from rlmesh_gym.server.env.served_lanes import ServedLanes
from rlmesh_gym.server.env.served_vector import ServedVector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rlmesh_gym.server.env.served_env import ServedEnv

    AnyEnv = gym.Env[Any, Any] | VectorEnv[Any, Any, Any] | Sequence[gym.Env[Any, Any]]

__all__ = ["EnvSource"]

_logger = logging.getLogger(__name__)
_UNKNOWN_ID = "UnknownEnv-v1"


class EnvSource:
    """Gives each session its environment and takes it back.

    Attributes:
        is_per_session: Every session has an environment of its own.

    Args:
        env: What the user wants served; see :class:`~rlmesh_gym.server.EnvServer`.
        per_session: Build an environment for every session, so that several can run at a time.
        env_id: Name to announce instead of the environment's own.
        partial_reset: See :class:`~rlmesh_gym.server.env.served_vector.ServedVector`.
        overlap: See :class:`~rlmesh_gym.server.env.served_lanes.ServedLanes`.

    Raises:
        ConfigurationError: Not an environment, or one object where each session needs its own.
        UnsupportedSpaceError: A space has no wire form.
    """

    def __init__(
        self,
        env: AnyEnv | Callable[[], AnyEnv],
        *,
        per_session: bool,
        env_id: str | None,
        partial_reset: bool | None,
        overlap: bool,
    ) -> None:
        self._env_id = env_id
        self._partial_reset = partial_reset
        self._overlap = overlap
        self.is_per_session = per_session
        self._build: Callable[[], AnyEnv] | None = None
        self._spare: ServedEnv | None = None
        if isinstance(env, (gym.Env, VectorEnv, list, tuple)):
            if per_session:
                raise ConfigurationError(
                    "several sessions at a time need an environment each; pass a callable that "
                    "builds one, such as lambda: gymnasium.make(...)"
                )
            self._spare = self._serve(env)
        elif callable(env):
            self._build = env
        else:
            raise ConfigurationError(
                "expected a gymnasium.Env, a list of them, a gymnasium.vector.VectorEnv or a "
                f"callable that returns one of these, got {type(env).__name__}"
            )
        self._contract: env_contract_pb2.EnvContract | None = None
        self._capabilities: list[str] = []

    def prepare(self) -> None:
        """Build the first environment, from which the contract is read."""
        if self._spare is None:
            self._spare = self._new()
        served = self._spare
        self._contract = encode_contract(served.contract)
        self._capabilities = [ARRAYS, SPACES]
        if served.has_lane_operations:
            self._capabilities.append(SUBSET_STEP)
        if served.has_partial_reset:
            self._capabilities.append(PARTIAL_RESET)
        if served.contract.autoreset_mode is gym.vector.AutoresetMode.SAME_STEP:
            self._capabilities.append(FINAL_OBS)

    @property
    def contract(self) -> env_contract_pb2.EnvContract:
        """What the handshake announces; after :meth:`prepare`."""
        if self._contract is None:
            raise ConfigurationError("the environment has not been built yet")
        return self._contract

    def contract_for(self, capabilities: Mapping[str, str]) -> env_contract_pb2.EnvContract:
        """Return the contract in the form that a client with these capabilities reads.

        Raises:
            UnsupportedSpaceError: There is none.
        """
        if capabilities.get(SPACES) == "true":
            return self.contract
        contract = env_contract_pb2.EnvContract()
        contract.CopyFrom(self.contract)
        plain_spec(contract.spec)
        return contract

    @property
    def capabilities(self) -> list[str]:
        """Names that the handshake announces; after :meth:`prepare`."""
        return list(self._capabilities)

    def take(self) -> ServedEnv:
        """Return the environment for a new session.

        Raises:
            ConfigurationError: A newly built one does not fit the contract announced.
        """
        if not self.is_per_session:
            if self._spare is None:
                raise ConfigurationError("the environment is closed")
            return self._spare
        served, self._spare = self._spare, None
        if served is not None:
            return served
        served = self._new()
        if encode_contract(served.contract) != self.contract:
            served.close()
            raise ConfigurationError(
                "the environment built for this session differs from the first one in its spaces, "
                "number of lanes, metadata or autoreset mode"
            )
        return served

    def give_back(self, served: ServedEnv) -> None:
        """Take back what :meth:`take` gave; a session's own environment is closed."""
        if self.is_per_session:
            _close(served)

    def close(self) -> None:
        """Close what no session has; may be called again."""
        served, self._spare = self._spare, None
        if served is not None:
            _close(served)

    def _new(self) -> ServedEnv:
        if self._build is None:
            raise ConfigurationError("the environment is closed")
        return self._serve(self._build())

    def _serve(self, env: Any) -> ServedEnv:
        served: ServedEnv
        if isinstance(env, VectorEnv):
            served = ServedVector(env, self._name(env), partial_reset=self._partial_reset)
        elif isinstance(env, gym.Env):
            served = self._lanes([env], self._name(env))
        elif isinstance(env, (list, tuple)) and all(isinstance(lane, gym.Env) for lane in env):
            served = self._lanes(env, self._name(env[0]) if env else _UNKNOWN_ID)
        else:
            raise ConfigurationError(
                "expected a gymnasium.Env, a list of them or a gymnasium.vector.VectorEnv, "
                f"got {type(env).__name__}"
            )
        served.contract = without_unsupported(served.contract)
        return served

    def _lanes(self, envs: Sequence[gym.Env[Any, Any]], env_id: str) -> ServedLanes:
        return ServedLanes(envs, env_id, overlap=self._overlap)

    def _name(self, env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> str:
        if self._env_id:
            return self._env_id
        return env.spec.id if env.spec is not None else _UNKNOWN_ID


def _close(served: ServedEnv) -> None:
    try:
        served.close()
    except (Exception, SystemExit, KeyboardInterrupt):  # Only the log can hear it now.
        _logger.exception("closing the environment failed")
