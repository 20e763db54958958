"""``rlmesh-gym serve``: a Gymnasium environment at an address."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from rlmesh_gym.cli.exit_codes import Exit
from rlmesh_gym.cli.options import (
    add_server_options,
    count_option,
    find_in_working_directory,
    keyword_arguments,
    keyword_option,
    server_arguments,
)
from rlmesh_gym.cli.signals import serve_until_interrupted
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.server import EnvServer
from rlmesh_gym.server.env.lane_vector import make_envs
from rlmesh_gym.threads import WhichThread

if TYPE_CHECKING:
    import argparse

    from rlmesh_gym.server.env.lane_vector import Made


_MODES = {mode.name.lower().replace("_", "-"): mode for mode in AutoresetMode}

EPILOG = """\
What is served:
  one environment           without --num-envs; its client resets it
  a vector of N lanes       with --num-envs N; resets its lanes itself, --autoreset-mode says when
  N lanes one by one        with --num-envs N --lanes; the client resets and steps each by itself

Clients of rlmesh-gym turn any of these into the autoreset mode that they are asked for.

  rlmesh-gym serve CartPole-v1 --num-envs 8 --address 127.0.0.1:5555
  rlmesh-gym serve my_package:MyEnv-v0 --env-kwargs size=5 --env-kwargs '{"goal": [1, 2]}'
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "env_id", metavar="ENV_ID", help="Gymnasium id, as module:Id where an import registers it"
    )
    count_option(parser, "--num-envs", "serve N lanes (default: one env)")
    parser.add_argument(
        "--autoreset-mode",
        choices=sorted(_MODES),
        help="when a vector's lane begins its next episode (default: next-step)",
    )
    parser.add_argument(
        "--lanes", action="store_true", help="serve the lanes one by one instead of as a vector"
    )
    parser.add_argument(
        "--processes", action="store_true", help="run each lane of the vector in its own process"
    )
    parser.add_argument("--render-mode", metavar="MODE", help="such as rgb_array")
    keyword_option(parser, "--env-kwargs", "the environment")
    text = "clients at a time, each with environments of its own (default: 1)"
    count_option(parser, "--max-sessions", text, default=1)
    parser.add_argument(
        "--overlap",
        action="store_true",
        help="let lanes and clients be at work at the same time, for environments that are safe to "
        "run on several threads of one process (default: one after the other)",
    )
    parser.add_argument(
        "--dedicated-thread",
        action="store_true",
        help="call the environment from one thread only, as OpenGL wants it (--thread own)",
    )
    parser.add_argument(
        "--thread",
        choices=get_args(WhichThread),
        help="thread to make, call and close the environment on: any, one of its own, or the main "
        "thread, where handlers of signals and some windows work (default: any)",
    )
    add_server_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    mode = _mode(options)
    what = str(options.env_id)
    if options.num_envs is not None:
        lanes = "1 lane" if options.num_envs == 1 else f"{options.num_envs} lanes"
        what += f" ({lanes}, {'one by one' if mode is None else mode.name})"
    render = {} if options.render_mode is None else {"render_mode": options.render_mode}
    build = partial(
        build_env,
        options.env_id,
        num_envs=options.num_envs,
        autoreset_mode=mode,
        processes=options.processes,
        env_kwargs=keyword_arguments(options.env_kwargs),
        **render,
    )
    server = EnvServer(
        build,
        max_sessions=options.max_sessions,
        overlap=options.overlap,
        dedicated_thread=options.dedicated_thread,
        thread=options.thread,
        **server_arguments(options),
    )
    serve_until_interrupted(server, what)
    return Exit.DONE


def _mode(options: argparse.Namespace) -> AutoresetMode | None:
    """The mode of the vector to serve, None for lanes one by one."""
    is_vector = options.num_envs is not None and not options.lanes
    if options.autoreset_mode is None and not options.processes:
        return AutoresetMode.NEXT_STEP if is_vector else None
    if not is_vector:
        message = "--autoreset-mode and --processes need a vector: --num-envs without --lanes"
        raise ConfigurationError(message)
    return _MODES[options.autoreset_mode or "next-step"]


def build_env(env_id: str, **options: Any) -> Made:
    """``make_envs`` with errors that a command line can tell."""
    if ":" in env_id:
        find_in_working_directory()
    try:
        return make_envs(env_id, **options)
    except (gym.error.NameNotFound, gym.error.NamespaceNotFound) as error:
        raise ConfigurationError(
            f"{error} An environment of your own needs the module that registers it, as in "
            "my_package:MyEnv-v0"
        ) from error
    except gym.error.Error:
        raise
    except Exception as error:
        message = f"making {env_id!r} failed: {type(error).__name__}: {error}"
        raise ConfigurationError(message) from error
