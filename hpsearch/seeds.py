"""Seeds that depend on the sweep's seed and the trial's number alone."""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["SEED_LIMIT", "trial_seed"]

SEED_LIMIT = 2**32
"""Seeds lie below this: what `numpy.random.seed` takes."""


def trial_seed(sweep_seed: int, number: int) -> int:
    """Give the seed of a trial; 0 <= seed < 2**32.

    A hash, and not the words that seed the searcher's own generator: a trainable that draws from
    `numpy.random.default_rng(trial.seed)` must not see the numbers its params were made of.
    """
    words = sweep_seed.to_bytes(8, "little") + number.to_bytes(8, "little")
    return int.from_bytes(blake2b(words, digest_size=4, person=b"hpsearch trial").digest(), "little")
