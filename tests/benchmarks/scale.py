"""Whether a trial of a large sweep costs more than one of a small sweep, in time and in memory."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import psutil

from tests.benchmarks.figures import Figure
from tests.benchmarks.sweeps import Timing, local_ray, run_noop

SMALL = 1_000
LARGE = 20_000
SMALL_TURNS = 3
"""Small sweeps for each large one: they are short, and so their rate scatters more."""

_MEMORY_FROM = 5_000
_SAMPLE_SECONDS = 0.05
_WARM_UP = 200


def measure(rounds: int) -> list[Figure]:
    """Run small and large sweeps in turns, and one large one in a process of its own to weigh it."""
    small: list[float] = []
    large: list[float] = []
    last: list[float] = []
    with local_ray():
        run_noop(_WARM_UP)
        for _ in range(rounds):
            turns = sorted(_cost(run_noop(SMALL)) for _ in range(SMALL_TURNS))
            small.append(turns[SMALL_TURNS // 2])
            timing = run_noop(LARGE)
            large.append(_cost(timing))
            last.append(1e3 / timing.rate(since=LARGE - SMALL))
    beside = f"in a sweep of {SMALL:,}"
    return [
        Figure(f"a no-op trial in a sweep of {LARGE:,}", "ms", large, "ratio at most 1.3", beside, small),
        Figure(f"... the last {SMALL:,} of them", "ms", last, "ratio at most 1.3", beside, small),
        Figure(f"driver's memory per trial, {_MEMORY_FROM:,} to {LARGE:,}", "KiB", [_weigh()], "at most 4"),
    ]


def _cost(timing: Timing) -> float:
    return 1e3 / timing.rate()


def _weigh() -> float:
    done = subprocess.run([sys.executable, "-m", __spec__.name], stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


class _Scales(threading.Thread):
    """Weighs this process all the time, to be asked later."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._done = threading.Event()
        self._samples: list[tuple[float, int]] = []

    def run(self) -> None:
        process = psutil.Process()
        while not self._done.wait(_SAMPLE_SECONDS):
            self._samples.append((time.time(), process.memory_info().rss))

    def stop(self) -> None:
        self._done.set()
        self.join()

    def at(self, moment: float) -> int:
        """Return the bytes of the sample that is nearest to a wall time."""
        return min(self._samples, key=lambda sample: abs(sample[0] - moment))[1]


def _main() -> None:
    """Print by how much the driver grows per trial, in KiB."""
    with local_ray():
        scales = _Scales()
        scales.start()
        ends = run_noop(LARGE).ends
        scales.stop()
    grown = scales.at(ends[-1]) - scales.at(ends[_MEMORY_FROM - 1])
    print(json.dumps(grown / (LARGE - _MEMORY_FROM) / 1024))


if __name__ == "__main__":
    _main()
