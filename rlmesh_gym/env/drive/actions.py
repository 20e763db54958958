"""Actions: checked against the action space before anything is sent, then made leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rlmesh_gym.codec import filler_action
from rlmesh_gym.errors import ActionError, ActionTypeError, CodecError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlmesh_gym.codec import Leaves, SpaceCodec


class ActionCheck:
    """Reads batches of actions for a number of lanes; ``codec`` is that of a single action."""

    def __init__(self, codec: SpaceCodec, num_envs: int) -> None:
        self._codec = codec
        self._num_envs = num_envs
        space = codec.space
        self._space = space
        self._is_array = isinstance(
            space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
        )
        self._shape = (num_envs, *(space.shape or ()))
        self._dtype = np.dtype(space.dtype) if self._is_array else np.dtype(object)
        self._filler: Leaves | None = None

    def read(self, actions: Any, ignored: NDArray[np.bool_] | None = None) -> Leaves:
        """Check a batch and return its leaves, which may alias it and are only read.

        A list of one action per lane works where the space is an array. Where ``ignored`` marks a
        lane, a value outside the domain is replaced instead of refused. An ActionTypeError is for
        no batch, or a dtype that cannot become the space's.
        """
        if self._is_array:
            leaves = [self._array(actions)]
        else:
            try:
                leaves = self._codec.flatten(actions, self._num_envs)
            except CodecError as error:
                raise self._mismatch(actions, error) from None
        wrong = self._codec.out_of_domain(leaves)
        return self._replace(leaves, wrong, ignored) if wrong else leaves

    def read_one(self, action: Any) -> Leaves:
        """Check a single action and return its leaves, with one row; see ``read``."""
        if not self._is_array:
            try:
                leaves = self._codec.flatten_row(action)
            except CodecError as error:
                raise self._mismatch(action, error) from None
            self._refuse(self._codec.out_of_domain(leaves))
            return leaves
        try:
            array = np.asarray(action)
        except (TypeError, ValueError) as error:
            raise ActionTypeError(f"step: expected an action of {self._space}: {error}") from None
        if array.shape != self._shape[1:]:
            raise ActionError(
                f"step: expected an action of shape {self._shape[1:]} (action_space={self._space})"
                f", got {array.shape}"
            )
        return self.read(array[np.newaxis])

    def _array(self, actions: Any) -> NDArray[Any]:
        if isinstance(actions, np.ndarray):
            array = actions
        else:
            try:
                array = np.asarray(actions)
            except (TypeError, ValueError) as error:
                raise ActionTypeError(
                    f"step: expected an array of shape {self._shape}, got "
                    f"{type(actions).__name__} that makes none: {error}"
                ) from None
        if array.ndim == 0 and self._shape != ():
            raise ActionTypeError(
                f"step: expected a batch of {self._num_envs} actions, shape {self._shape}, "
                f"got the single value {actions!r}; there is nothing to iterate over"
            )
        if array.shape != self._shape:
            raise ActionError(
                f"step: expected actions of shape {self._shape} (num_envs={self._num_envs}, "
                f"single_action_space={self._space}), got {array.shape}"
            )
        if array.dtype != self._dtype:
            if not np.can_cast(array.dtype, self._dtype, "same_kind"):
                raise ActionTypeError(
                    f"step: expected actions of dtype {self._dtype} "
                    f"(single_action_space={self._space}), got {array.dtype}"
                )
            if array.dtype.kind in "iu" and self._dtype.kind in "iu":
                self._check_range(array)
            array = array.astype(self._dtype)
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)

    def _check_range(self, array: NDArray[Any]) -> None:
        # A narrowing cast would wrap 256 to 0, a legal action that nobody chose.
        limits = np.iinfo(self._dtype)  # type: ignore[type-var,unused-ignore]
        wrong = (array < limits.min) | (array > limits.max)
        if wrong.any():
            lane = int(np.argwhere(wrong)[0][0])
            raise ActionError(
                f"step: the action of lane {lane} does not fit {self._dtype}, got {array[lane]!r}"
            )

    def _mismatch(self, actions: Any, error: CodecError) -> ActionError:
        scalar = not isinstance(actions, (dict, list, tuple, np.ndarray))
        wanted = f"step: expected a batch of {self._num_envs} actions of {self._space}"
        message = f"{wanted}, got {type(actions).__name__}: {error}"
        if scalar or isinstance(error, TypeError):
            return ActionTypeError(message)
        return ActionError(message)

    def _replace(
        self, leaves: Leaves, wrong: list[tuple[int, str, str]], ignored: NDArray[np.bool_] | None
    ) -> Leaves:
        self._refuse([entry for entry in wrong if ignored is None or not ignored[entry[0]]])
        rows = sorted({lane for lane, _, _ in wrong})
        if self._filler is None:
            self._filler = filler_action(self._codec)
        replaced = [leaf.copy() for leaf in leaves]
        for leaf, fill in zip(replaced, self._filler, strict=True):
            leaf[rows] = fill[0]
        return replaced

    def _refuse(self, wrong: list[tuple[int, str, str]]) -> None:
        if wrong:
            lane, path, detail = wrong[0]
            raise ActionError(
                f"step: the action of lane {lane} is not in {self._space}: {path}: {detail}"
            )
