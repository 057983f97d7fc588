"""Random seeds and bits that depend only on the sweep's seed and the trial's number."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

SEED_LIMIT = 2**32
"""Seeds are less than this, the limit of `numpy.random.seed`."""

DRAW_BITS = 128
"""Random bits of one sample: enough to sample a 64-bit integer without a noticeable bias."""


def trial_seed(sweep_seed: int, number: int) -> int:
    """Return the seed of a trial, or of the repeat `number` of all configurations; 0 <= seed < 2**32.

    The hash has its own domain tag: a trainable that samples from `numpy.random.default_rng(trial.seed)` must not get
    the random numbers that its params were sampled with.
    """
    return _hashed(_prefix(sweep_seed, number), 4, b"hpsearch trial")


def explore_seed(sweep_seed: int) -> int:
    """Return the seed that replaces the sweep's when params of forked trials are sampled; 0 <= seed < 2**32."""
    return _hashed(_prefix(sweep_seed, 0), 4, b"hpsearch explore")


def perturb_seed(sweep_seed: int) -> int:
    """Return the seed of the perturbations of forked trials' params; 0 <= seed < 2**32."""
    return _hashed(_prefix(sweep_seed, 0), 4, b"hpsearch perturb")


def stand_in_seed(sweep_seed: int) -> int:
    """Return the seed of the random configurations that are used when no suggestion is ready; 0 <= seed < 2**32."""
    return _hashed(_prefix(sweep_seed, 0), 4, b"hpsearch standin")


def redraw_seed(seed: int, attempt: int) -> int:
    """Return the seed that replaces `seed` when a configuration is sampled again; 0 <= seed < 2**32."""
    return _hashed(_prefix(seed, attempt), 4, b"hpsearch redraw")


def suggestion_seed(sweep_seed: int, number: int, attempt: int = 0) -> int:
    """Return the seed of the model that computes a suggestion; 0 <= seed < 2**32."""
    return _hashed(_prefix(sweep_seed, number) + attempt.to_bytes(4, "little"), 4, b"hpsearch suggest")


def draw_bits(sweep_seed: int, number: int, path: Sequence[str], attempt: int = 0) -> int:
    """Return the random bits that a trial's parameter is sampled with; 0 <= bits < 2**`DRAW_BITS`.

    A configuration that violates a constraint is sampled again from other bits, with the next `attempt`.

    The bits depend on the parameter's own path and on no other parameter: if parameters are added to a space, removed
    or reordered, the others keep their values. The bits come from a keyed hash, so that no generator in a user's code
    produces the same stream, with any seed.
    """
    # No name contains NUL, so it distinguishes ("a.b",) from ("a", "b"); the prefix has a fixed length.
    message = _prefix(sweep_seed, number) + "\0".join(path).encode()
    if attempt:
        return _hashed(attempt.to_bytes(4, "little") + message, DRAW_BITS // 8, b"hpsearch again")
    return _hashed(message, DRAW_BITS // 8, b"hpsearch draw")


def mutation_bits(seed: int, path: Sequence[str]) -> tuple[int, int]:
    """Return (turn, bits) of a parameter for a mutation: turn < 2**64, bits < 2**`DRAW_BITS`.

    The parameter with the smallest turn changes; its new value is sampled with the bits. Both numbers depend on the
    parameter's own path and on no other parameter.
    """
    message = seed.to_bytes(8, "little") + "\0".join(path).encode()
    hashed = _hashed(message, DRAW_BITS // 8 + 8, b"hpsearch mutate")
    return hashed >> DRAW_BITS, hashed & ((1 << DRAW_BITS) - 1)


def crossover_bits(seed: int, path: Sequence[str]) -> int:
    """Return the random bits that decide which parent a parameter comes from; 0 <= bits < 2**`DRAW_BITS`."""
    message = seed.to_bytes(8, "little") + "\0".join(path).encode()
    return _hashed(message, DRAW_BITS // 8, b"hpsearch cross")


def is_near_prior(sweep_seed: int, number: int) -> bool:
    """Return whether a trial is in the half that is sampled near the priors, for all parameters at once."""
    return _hashed(_prefix(sweep_seed, number), 1, b"hpsearch prior") % 2 == 1


def _prefix(sweep_seed: int, number: int) -> bytes:
    return sweep_seed.to_bytes(8, "little") + number.to_bytes(8, "little")


def _hashed(message: bytes, size: int, mark: bytes) -> int:
    return int.from_bytes(blake2b(message, digest_size=size, person=mark).digest(), "little")
