"""`python -m tests.benchmarks [NAME ...]` measures and prints; it never fails for being slow."""

from __future__ import annotations

import argparse
import importlib
import sys

from tests.benchmarks.figures import Figure, machine, render

_BENCHMARKS = (
    "noop",
    "hyperband",
    "trainer_overhead",
    "lanes",
    "fused_sweeps",
    "throughput",
    "elastic",
    "elastic_simulated",
    "gangs",
    "pbt",
    "architectures",
    "found_network",
    "inheritance",
    "several_goals",
    "large_batch",
    "simulated",
    "scale",
    "designed",
    "parameter_servers",
    "downpour",
    "comm",
    "hogwild",
    "horovod",
    "lost_rank",
    "split_models",
    "average_once",
    "local_sgd",
)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(_BENCHMARKS)}; none: all")
    parser.add_argument("--rounds", type=int, default=3, help="turns of ours and each peer (default: 3)")
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(_BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(_BENCHMARKS)}")
    figures: list[Figure] = []
    before = machine()
    for name in arguments.names or _BENCHMARKS:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        figures += importlib.import_module(f"tests.benchmarks.{name}").measure(arguments.rounds)
    print(render(figures, arguments.format))
    if arguments.format != "json":
        print(f"\n{before} at the start, {machine().rpartition(', ')[2]} at the end, {arguments.rounds} rounds")


if __name__ == "__main__":
    _main()
