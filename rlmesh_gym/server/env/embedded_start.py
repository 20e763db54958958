"""The first moments of an embedded server's process; run as a file, before anything is imported.

Arguments: the parent's process id, its ``sys.path`` as JSON, and how many seconds this process may
outlive it. What the package needs is found in this interpreter's own places first: a module of the
user's never takes the place of a library. Then the child finds what the parent finds.

A second process, made while this one is still small, sees the parent end. It holds no lock of an
interpreter that a step may be holding, so that nothing outlives the parent for long.
"""

import json
import os
import select
import signal
import sys
import sysconfig


def watch_parent(parent: int, grace: float) -> int | None:
    """Have this process killed when it outlives its parent by ``grace`` seconds; return by whom.

    Until then the environments can be closed in order. None where the system cannot tell of the
    end of a process.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    child = os.getpid()
    try:
        both = os.pidfd_open(parent), os.pidfd_open(child)
    except OSError:  # An old kernel, or the parent has gone.
        return None
    watcher = os.fork()
    if watcher:
        for descriptor in both:
            os.close(descriptor)
        return watcher
    try:
        _watch(*both, grace)
    finally:
        os._exit(0)


def _watch(parent: int, child: int, grace: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    either = select.poll()
    for descriptor in (parent, child):
        either.register(descriptor, select.POLLIN)
    ended = either.poll()
    if all(descriptor != child for descriptor, _ in ended):
        only = select.poll()
        only.register(child, select.POLLIN)
        if not only.poll(1000 * grace):
            signal.pidfd_send_signal(child, signal.SIGKILL)


def main() -> int:
    """Import the server and run it; return the exit status."""
    parent, places, grace = int(sys.argv[1]), json.loads(sys.argv[2]), float(sys.argv[3])
    if os.name == "posix" and os.getppid() != parent:
        return 0  # It has ended before we began.
    watcher = watch_parent(parent, grace)
    here = os.path.dirname(os.path.abspath(__file__))
    own = [place for place in sys.path if place and os.path.abspath(place) != here]
    sys.path[:] = [*own, *places]
    # Read by gRPC at its import; see rlmesh_gym.cli, which sets it for the same reason.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from rlmesh_gym.server.env import embedded  # noqa: PLC0415 - the path is set now

    library = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    first = [place for place in own if os.path.dirname(place) in library or place in library]
    sys.path[:] = list(dict.fromkeys([*first, *places, *own]))
    return embedded.main(watcher)


if __name__ == "__main__":
    sys.exit(main())
