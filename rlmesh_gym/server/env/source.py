"""Where a server's environments come from: one for all sessions, or a new one for each."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from rlmesh_gym._proto.core.v1 import env_contract_pb2
from rlmesh_gym.codec import encode_contract, find_env_id, plain_spec, without_unsupported
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.rpc import ARRAYS, FINAL_OBS, PARTIAL_RESET, SPACES, SUBSET_STEP
from rlmesh_gym.server.env.served_lanes import ServedLanes
from rlmesh_gym.server.env.served_vector import ServedVector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rlmesh_gym.server.env.served_env import ServedEnv

    AnyEnv = gym.Env[Any, Any] | VectorEnv[Any, Any, Any] | Sequence[gym.Env[Any, Any]]


_logger = logging.getLogger(__name__)


class EnvSource:
    """Gives each session its environment, or one of its own (``per_session``) and takes it back.

    Options and errors are those of :class:`~rlmesh_gym.server.EnvServer`.
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
        self._uses = 0  # Sessions that the present environment has had.
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
        self.capabilities: list[str] = []  # What the handshake announces.

    def prepare(self) -> None:
        """Build the first environment, from which contract and capabilities are read."""
        if self._spare is None:
            self._spare = self._new()
        served = self._spare
        self._contract = encode_contract(served.contract)
        self.capabilities = [ARRAYS, SPACES]
        if served.has_lane_operations:
            self.capabilities.append(SUBSET_STEP)
        if served.has_partial_reset:
            self.capabilities.append(PARTIAL_RESET)
        if served.contract.autoreset_mode is gym.vector.AutoresetMode.SAME_STEP:
            self.capabilities.append(FINAL_OBS)

    def contract_for(self, capabilities: Mapping[str, str]) -> env_contract_pb2.EnvContract:
        """Return the contract in a client's form; an UnsupportedSpaceError says there is none."""
        if capabilities.get(SPACES) == "true":
            return self._contract
        contract = env_contract_pb2.EnvContract()
        contract.CopyFrom(self._contract)
        plain_spec(contract.spec)
        return contract

    def take(self) -> ServedEnv:
        """Return the environment for a new session; a new one must fit the contract announced."""
        if not self.is_per_session:
            if self._spare is None:
                raise ConfigurationError("the environment is closed")
            self._uses += 1
            return self._spare
        served, self._spare = self._spare, None
        if served is not None:
            return served
        return self._another()

    def renew(self) -> ServedEnv | None:
        """Make an environment that an earlier session may have broken anew, from its callable.

        None where there is no callable, or no earlier session.
        """
        if self._build is None or self.is_per_session or self._uses < 2:  # noqa: PLR2004
            return None
        broken, self._spare = self._spare, None
        if broken is not None:
            _close(broken)
        self._spare = self._another()
        self._uses = 1
        return self._spare

    def _another(self) -> ServedEnv:
        served = self._new()
        if encode_contract(served.contract) != self._contract:
            served.close()
            raise ConfigurationError(
                "the environment built for this session differs from the first one in its spaces, "
                "number of lanes, metadata or autoreset mode"
            )
        return served

    def give_back(self, served: ServedEnv) -> None:
        """Close a session's own environment, which :meth:`take` gave."""
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
            served = ServedLanes([env], self._name(env), overlap=self._overlap)
        elif isinstance(env, (list, tuple)) and all(isinstance(lane, gym.Env) for lane in env):
            served = ServedLanes(env, self._name(env[0] if env else None), overlap=self._overlap)
        else:
            raise ConfigurationError(
                "expected a gymnasium.Env, a list of them or a gymnasium.vector.VectorEnv, "
                f"got {type(env).__name__}"
            )
        served.contract = without_unsupported(served.contract)
        return served

    def _name(self, env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any] | None) -> str:
        return self._env_id or find_env_id(env)


def _close(served: ServedEnv) -> None:
    try:
        served.close()
    except (Exception, SystemExit, KeyboardInterrupt):  # Only the log can hear it now.
        _logger.exception("closing the environment failed")
