"""How long every call took and how much it carried, over the last window and the whole run.

Memory is bounded: each metric keeps a fixed-size random sample. A ticker thread takes the window
snapshots, so they also come while a call hangs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlmesh_gym.rpc import LARGE_BYTES, InProcessPending, Pending
from rlmesh_gym.runtime.report.metrics import (
    METRICS,
    MODEL_PREDICT,
    OPERATIONS,
    CallTiming,
    HeldByModel,
    TelemetryRow,
    TelemetrySnapshot,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from rlmesh_gym.rpc import AnyPending
    from rlmesh_gym.runtime.report.metrics import Metric


_logger = logging.getLogger(__name__)

_SHORTEST_WINDOW = 0.001  # Seconds.
_WINDOW_SAMPLES, _SESSION_SAMPLES = 1024, 4096  # Kept per metric.
_SCALES = np.array([1e-9 if metric.unit == "s" else 1.0 for metric in METRICS])
# Calls are noted one by one and worked off in bulk, which costs a twentieth.
_BULK = 512
# What an answer says of its making, in the order of CallTiming.
_TOLD = ("endpoint_total_ns", "queue_ns", "decode_ns", "user_ns", "encode_ns")
_ENV_TOLD = (*_TOLD, "lane_skew_ns")
_MODEL_TOLD = (*_TOLD, "adapter_ns")
_read_env, _read_model = attrgetter(*_ENV_TOLD), attrgetter(*_MODEL_TOLD)


def timing_of(operation: str, call: AnyPending) -> CallTiming:
    """What an answered call took, by this side's clock and by what the answer says."""
    if isinstance(call, InProcessPending):
        return CallTiming(call.elapsed_ns, user_ns=call.elapsed_ns)
    answer = call.response
    of_model = operation is MODEL_PREDICT
    told: tuple[int | None, ...] = (_read_model if of_model else _read_env)(answer)
    if 0 in told:  # Sent as zero, or not sent?
        names = _MODEL_TOLD if of_model else _ENV_TOLD
        pairs = zip(names, told, strict=True)
        told = (*(value if value or answer.HasField(name) else None for name, value in pairs),)
    total, queue, decode, user, encode, own = told
    return CallTiming(
        call.elapsed_ns,
        total,
        queue,
        decode,
        user,
        encode,
        None if of_model else own,
        own if of_model else None,
        call.request_bytes,
        call.response_bytes,
    )


class Reservoir:
    """A uniform random sample of bounded size, with exact count and sum."""

    __slots__ = ("_capacity", "_rng", "count", "samples", "total")

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        self._capacity = capacity
        self._rng = rng
        self.samples: NDArray[np.float64] = np.empty(0)
        self.count: int = 0
        self.total: float = 0.0

    def extend(self, values: NDArray[np.float64]) -> None:
        """Take samples in; every sample so far is kept with equal chance."""
        self.total += float(values.sum())
        room = self._capacity - len(self.samples)
        if room > 0:
            self.samples = np.concatenate([self.samples, values[:room]])
            self.count += len(values[:room])
            values = values[room:]
        if not len(values):
            return
        # Sample number n replaces a random one of the kept with a chance of capacity / n.
        numbers = np.arange(self.count + 1, self.count + len(values) + 1)
        self.count += len(values)
        places = (self._rng.random(len(values)) * numbers).astype(np.intp)
        chosen = places < self._capacity
        self.samples[places[chosen]] = values[chosen]

    def row(self, operation: str, metric: Metric) -> TelemetryRow:
        """Summarise the samples, which must not be empty."""
        # The smallest sample that so many percent do not exceed. NumPy's percentile with the method
        # "inverted_cdf" says the same and takes seven times as long.
        ranks = [(percent * len(self.samples) + 99) // 100 - 1 for percent in (50, 95, 99)]
        p50, p95, p99 = np.partition(self.samples, ranks)[ranks].tolist()
        return TelemetryRow(
            operation=operation,
            metric=metric.name,
            unit=metric.unit,
            count=self.count,
            avg=self.total / self.count,
            p50=p50,
            p95=p95,
            p99=p99,
            total=self.total,
        )


class _Horizon:
    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        self.reservoirs = {
            operation: tuple(Reservoir(capacity, rng) for _ in METRICS) for operation in OPERATIONS
        }
        self.began = time.perf_counter()

    def rows(self) -> tuple[TelemetryRow, ...]:
        return tuple(
            reservoir.row(operation, metric)
            for operation, reservoirs in self.reservoirs.items()
            for metric, reservoir in zip(METRICS, reservoirs, strict=True)
            if reservoir.count
        )


class Telemetry:
    """Collects the samples of one run. Safe to read from another thread."""

    def __init__(self, session_id: str, *, run_id: str = "") -> None:
        self.env_id: str = ""  # Set once it is known.
        self._session_id = session_id
        self._run_id = run_id
        # Seeded, so that telemetry takes nothing from the user's generators.
        self._rng = np.random.default_rng(0)
        self._lock = threading.Lock()
        self._window = _Horizon(_WINDOW_SAMPLES, self._rng)
        self._session = _Horizon(_SESSION_SAMPLES, self._rng)
        self._pending: tuple[str, float] | None = None
        self._held: HeldByModel | None = None
        self._most_held: HeldByModel | None = None
        # Written by the run's thread, worked off by any that holds the lock.
        self._noted: dict[str, deque[CallTiming | Pending[Any]]]
        self._noted = {name: deque() for name in OPERATIONS}

    def begin(self, operation: str, began: float) -> None:
        """Note that a call of this operation is waited for since ``began``, by perf_counter."""
        self._pending = (operation, began)

    def end(self) -> None:
        """Note that nothing is being waited for."""
        self._pending = None

    def note_held(self, episodes: int | None, state_bytes: int | None, live: int) -> None:
        """Take in what the model says that it holds (None: nothing), while ``live`` are played."""
        if episodes is not None:
            held = self._held = HeldByModel(episodes, state_bytes, live)
            if self._most_held is None or held.excess >= self._most_held.excess:
                self._most_held = held

    def record(self, operation: str, call: AnyPending) -> None:
        """Take in one answered call; an error is no answer, and is not counted."""
        noted = self._noted[operation]
        if isinstance(call, Pending) and call.response_bytes < LARGE_BYTES:
            noted.append(call)
        else:
            noted.append(timing_of(operation, call))  # So that its arrays can go.
        if len(noted) >= _BULK:
            with self._lock:
                self._work_off()

    def _work_off(self) -> None:
        for operation, noted in self._noted.items():
            calls = [noted.popleft() for _ in range(len(noted))]
            timings = [
                timing_of(operation, call) if isinstance(call, Pending) else call for call in calls
            ]
            for index, column in enumerate(zip(*timings, strict=True)):
                values = [value for value in column if value is not None]
                if values:
                    samples = np.array(values, np.float64) * _SCALES[index]
                    self._window.reservoirs[operation][index].extend(samples)
                    self._session.reservoirs[operation][index].extend(samples)

    def window_snapshot(self) -> TelemetrySnapshot:
        """Summarise the samples since the last window snapshot, and begin a new window."""
        with self._lock:
            self._work_off()
            window, self._window = self._window, _Horizon(_WINDOW_SAMPLES, self._rng)
        return self._snapshot("window", window, self._held)

    def session_snapshot(self) -> TelemetrySnapshot:
        """Summarise all samples so far."""
        with self._lock:
            self._work_off()
            return self._snapshot("session", self._session, self._most_held)

    def _snapshot(
        self, horizon: Literal["window", "session"], samples: _Horizon, held: HeldByModel | None
    ) -> TelemetrySnapshot:
        now = time.perf_counter()
        pending = self._pending
        return TelemetrySnapshot(
            horizon=horizon,
            session_id=self._session_id,
            run_id=self._run_id,
            env_id=self.env_id,
            rows=samples.rows(),
            taken_at=time.time(),
            duration=now - samples.began,
            pending=None if pending is None else (pending[0], now - pending[1]),
            held=held,
        )


class TelemetryTicker:
    """Calls ``deliver`` with a window snapshot every ``window`` seconds, on a thread of its own.

    A window without a sample is passed over, unless one call hung all through it. What ``deliver``
    raises is logged.
    """

    def __init__(
        self, telemetry: Telemetry, window: float, deliver: Callable[[TelemetrySnapshot], None]
    ) -> None:
        self._telemetry = telemetry
        self._window = max(_SHORTEST_WINDOW, window)
        self._deliver = deliver
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rlmesh_gym-telemetry", daemon=True)

    def start(self) -> None:
        """Begin to tick."""
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Stop ticking, and wait ``timeout`` seconds for a delivery; whether the thread ended."""
        self._stop.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.wait(self._window):
            self._tick()

    def _tick(self) -> None:
        snapshot = self._telemetry.window_snapshot()
        hangs = snapshot.pending is not None and snapshot.pending[1] >= self._window
        if snapshot.rows or hangs:
            try:
                self._deliver(snapshot)
            except Exception:
                _logger.exception("delivering a telemetry window failed")
