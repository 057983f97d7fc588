"""Randomness that depends on the sweep's seed and the trial's number alone."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

SEED_LIMIT = 2**32
"""Seeds lie below this: what `numpy.random.seed` takes."""

DRAW_BITS = 128
"""Random bits of one draw: so many that an integer of 64 bits is drawn without a bias that could be seen."""


def trial_seed(sweep_seed: int, number: int) -> int:
    """Return the seed of a trial; 0 <= seed < 2**32.

    A hash with a mark of its own: a trainable that draws from `numpy.random.default_rng(trial.seed)` must not see
    the numbers its params were made of.
    """
    return _hashed(_prefix(sweep_seed, number), 4, b"hpsearch trial")


def explore_seed(sweep_seed: int) -> int:
    """Return the seed that params of forked trials are sampled with, in place of the sweep's; 0 <= seed < 2**32."""
    return _hashed(_prefix(sweep_seed, 0), 4, b"hpsearch explore")


def perturb_seed(sweep_seed: int) -> int:
    """Return the seed of the perturbations of forked trials' params; 0 <= seed < 2**32."""
    return _hashed(_prefix(sweep_seed, 0), 4, b"hpsearch perturb")


def stand_in_seed(sweep_seed: int) -> int:
    """Return the seed of the random configurations that are used when no suggestion is ready; 0 <= seed < 2**32."""
    return _hashed(_prefix(sweep_seed, 0), 4, b"hpsearch standin")


def redraw_seed(seed: int, attempt: int) -> int:
    """Return the seed that a configuration is sampled with again, in place of another seed; 0 <= seed < 2**32."""
    return _hashed(_prefix(seed, attempt), 4, b"hpsearch redraw")


def suggestion_seed(sweep_seed: int, number: int, attempt: int = 0) -> int:
    """Return the seed of the model that makes a suggestion; 0 <= seed < 2**32."""
    return _hashed(_prefix(sweep_seed, number) + attempt.to_bytes(4, "little"), 4, b"hpsearch suggest")


def draw_bits(sweep_seed: int, number: int, path: Sequence[str], attempt: int = 0) -> int:
    """Return the random bits that a trial's parameter is drawn with; 0 <= bits < 2**`DRAW_BITS`.

    A configuration that violates a constraint is sampled again, as another `attempt`, from other bits.

    They depend on the parameter's own path and on no other parameter, so that a space can gain, lose and reorder
    parameters while the others keep their draws. They come from a keyed hash, so that no generator of a user
    produces the same stream, whatever its seed.
    """
    # NUL, which no name holds, keeps ("a.b",) and ("a", "b") apart; the words before have a fixed length.
    message = _prefix(sweep_seed, number) + "\0".join(path).encode()
    if attempt:
        return _hashed(attempt.to_bytes(4, "little") + message, DRAW_BITS // 8, b"hpsearch again")
    return _hashed(message, DRAW_BITS // 8, b"hpsearch draw")


def mutation_bits(seed: int, path: Sequence[str]) -> tuple[int, int]:
    """Return a parameter's (turn, bits) for a mutation: turn < 2**64; bits, of its new value, < 2**`DRAW_BITS`.

    The parameter with the smallest turn changes. Both depend on its own path and on no other parameter.
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
