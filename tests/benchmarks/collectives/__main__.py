"""Measures the collectives alongside Gloo and Open MPI, in turn in the same processes, and prints a table.

Every rank is a process with one thread. Before each repetition it rewrites its tensor and meets the others. A
repetition lasts from the start of the last rank to the end of the last one. algbw and busbw are those of nccl-tests:
algbw = bytes / time, busbw = algbw * 2 (ranks - 1) / ranks.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from hpsearch_comm.errors import CommError, ConfigurationError
from tests.benchmarks.collectives.contenders import require
from tests.benchmarks.collectives.launch import measure
from tests.benchmarks.collectives.plan import ALGORITHMS, PEERS, Kind, Plan
from tests.benchmarks.collectives.report import render
from tests.benchmarks.collectives.sizes import parse_sizes


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = _parser()
    arguments = parser.parse_args(words)
    if arguments.list:
        print(_listing())
        return 0
    try:
        plan = parse(arguments)
    except ValueError as error:
        parser.error(str(error))
    # As with Ctrl-C: the ranks are ended, and nothing is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        outcome = measure(plan)
    except (CommError, OSError) as error:  # no space is left, a directory can't be written to
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the ranks were ended", file=sys.stderr)
        return 130
    print(render(outcome, arguments.format))
    return 0


def parse(arguments: argparse.Namespace) -> Plan:
    """Make a plan of what the command line says.

    Raises:
        ValueError: The arguments don't go together.
    """
    kind: Kind = arguments.kind
    if arguments.sizes is not None and kind in ("model", "memory"):
        raise ValueError(f"--{kind} has sizes of its own: leave out --sizes")
    sizes = Plan().sizes if arguments.sizes is None else parse_sizes(arguments.sizes)
    against = arguments.against
    if against is None:
        against = "none" if kind == "memory" else "gloo"
    peers = [] if against == "none" else [name.strip() for name in against.split(",")]
    return Plan(
        kind=kind,
        ranks=arguments.ranks,
        sizes=sizes,
        against=tuple(dict.fromkeys(peers)),
        algorithm=arguments.algorithm,
        transport="tcp" if arguments.netns else arguments.transport,
        rounds=arguments.rounds,
        namespaces=arguments.netns,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.collectives",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--sizes", help="bytes, such as 1K,64K,1M,16M,64M (the default)")
    parser.add_argument(
        "--against",
        metavar="PEERS",
        help=f"of {','.join(PEERS)}, or none (default: gloo; none for --memory)",
    )
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="auto")
    parser.add_argument("--transport", choices=("auto", "tcp"), default="auto", help="tcp: don't use shared memory")
    parser.add_argument(
        "--netns", action="store_true", help="half of the ranks in each of two network namespaces, over TCP; needs root"
    )
    kinds = parser.add_mutually_exclusive_group()
    for kind, what in (
        (
            "model",
            "training steps of three models, compared with DistributedDataParallel and FSDP2 over Gloo and hpsearch",
        ),
        (
            "memory",
            "a 64 MB zero-copy allreduce beside its additions and copies, and one of 1 KiB beside a bare ping-pong",
        ),
    ):
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=what)
    parser.set_defaults(kind="allreduce")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per size (default: 5)")
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    parser.add_argument("--list", action="store_true", help="list what can be measured, and exit")
    return parser


def _listing() -> str:
    lines = ["peers:"]
    for peer in PEERS:
        try:
            require(peer)
            lines.append(f"  {peer}")
        except ConfigurationError as error:
            lines.append(f"  {peer}: {error}")
    lines += [f"algorithms: {', '.join(ALGORITHMS)}", "transports: auto, tcp", "others: --model, --memory"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
