"""The weight of each rank's gradient in the mean.

The mean over all rows of a global batch is  Σ_r w_r g_r / Σ_r w_r,  where rank r has w_r rows and g_r is the gradient
of its loss, a mean over these rows. The group divides by the number of ranks n, so rank r first multiplies its gradient
by its share  w_r n / Σ w.  With equal weights all shares are exactly 1, and nothing is multiplied.

In 16 bits a share can cause an overflow: for weights 1, 0 and 0 the shares are 3, 0 and 0. 3 * 30,000 exceeds the
maximum of float16, but the mean, 30,000, doesn't. So nothing is multiplied in 16 bits. Gradients that are sent in 16
bits are multiplied by share / largest share before, which is at most 1, and by the largest share afterwards.

Ranks exchange their weights in one small allreduce of a table with two rows, weight and presence, and a column for each
rank. Both are 0 for a rank that has run out of batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpsearch_comm.errors import UsageError
from hpsearch_comm.group import Group
from hpsearch_comm.operations.work import Handle


@dataclass(frozen=True, slots=True)
class Share:
    """The shares of all ranks in one mean."""

    own: float
    """The factor of this rank's gradients before they are averaged. With 0 they are ignored, even if they are NaN."""
    of_all: tuple[float, ...]
    """The factor of each rank. The mean of all factors is 1."""

    @property
    def largest(self) -> float:
        """The largest share of all ranks."""
        return max(self.of_all)

    @property
    def even(self) -> bool:
        """Whether all ranks have the same weight."""
        return self.largest == 1.0


class Shares:
    """Exchanges the ranks' weights before each synchronized backward pass."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._table = torch.empty(0, device="cpu")
        self._pending: Handle[torch.Tensor] | None = None
        self.even = Share(1.0, (1.0,) * group.size)
        """The share if all ranks have the same weight."""
        self._share = self.even
        self.announced = False
        """Whether this rank has announced its weight for the next synchronized backward pass."""
        self.present: list[int] = []
        """The ranks that still had batches at the last exchange."""

    def announce(self, weight: float, *, present: bool = True) -> None:
        """Start to exchange the ranks' weights; a collective. `share` waits for the result."""
        # Not on torch's default device, which may be a GPU.
        self._table = torch.zeros(2, self._group.size, dtype=torch.float64, device="cpu")
        self._table[0, self._group.rank] = weight
        self._table[1, self._group.rank] = float(present)
        self._pending = self._group.allreduce_async(self._table, op="sum")
        self.announced = True

    def share(self) -> Share:
        """Return the factors of the gradients before they are averaged.

        Raises:
            UsageError: The weight of every rank is 0; raised on all.
        """
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
            weights, present = self._table.tolist()
            self.present = [rank for rank, there in enumerate(present) if there]
            heaviest = max(weights)
            if self.present and not heaviest:
                self.announced = False
                raise UsageError(
                    "at least one rank must have a weight above 0 in a backward pass, all ranks called set_weight(0): "
                    "skip a batch that is empty on every rank, on every rank"
                )
            if all(weight == weights[0] for weight in weights):
                self._share = self.even  # the formula might have a rounding error
            else:
                relative = [weight / heaviest for weight in weights]  # so that the sum is finite
                shares = tuple(weight * self._group.size / sum(relative) for weight in relative)
                self._share = Share(shares[self._group.rank], shares)
        return self._share

    def spend(self) -> None:
        """Mark this rank's weight as used, at the end of its backward pass."""
        self.announced = False
