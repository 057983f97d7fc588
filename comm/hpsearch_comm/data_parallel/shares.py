"""How much each rank's gradient counts in the mean.

The mean over all rows of a global batch is  Σ_r w_r g_r / Σ_r w_r,  where rank r has w_r rows and g_r is its gradient
of a loss that is a mean over them. Since the group divides by the number of ranks n, rank r multiplies its gradient by
its share  w_r n / Σ w  before.  Equal weights give shares of exactly 1, and nothing is multiplied.

In 16 bits a share may make a gradient too large: of weights 1, 0 and 0 the shares are 3, 0 and 0, and 3 * 30,000 is
more than float16 holds, while the mean, 30,000, isn't. So nothing is multiplied in 16 bits, and what travels in 16 bits
is multiplied by no more than 1 before, and by the largest share afterwards.

Ranks tell each other their weights in one small allreduce of a table of two rows, weight and presence, with a column
for each rank. A rank that has run out of batches has neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpsearch_comm.errors import UsageError
from hpsearch_comm.group import Group
from hpsearch_comm.operations.work import Handle


@dataclass(frozen=True, slots=True)
class Share:
    """How much gradients count in one mean."""

    own: float
    """What this rank's are multiplied by before they are averaged. 0 leaves them out, even if they aren't numbers."""
    of_all: tuple[float, ...]
    """The same for each rank. Their mean is 1."""

    @property
    def largest(self) -> float:
        """The largest of all ranks'."""
        return max(self.of_all)

    @property
    def even(self) -> bool:
        """Whether all ranks count alike."""
        return self.largest == 1.0


class Shares:
    """The weights of one backward pass after another."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._table = torch.empty(0, device="cpu")
        self._pending: Handle[torch.Tensor] | None = None
        self.even = Share(1.0, (1.0,) * group.size)
        """Where all ranks count alike."""
        self._share = self.even
        self.announced = False
        """Whether this rank has told its weight for the next synchronised backward pass."""
        self.present: list[int] = []
        """The ranks that took part in the last one."""

    def announce(self, weight: float, *, present: bool = True) -> None:
        """Begin to tell the other ranks this rank's weight; a collective. They are waited for when it is needed."""
        # Not on torch's default device, which may be a GPU.
        self._table = torch.zeros(2, self._group.size, dtype=torch.float64, device="cpu")
        self._table[0, self._group.rank] = weight
        self._table[1, self._group.rank] = float(present)
        self._pending = self._group.allreduce_async(self._table, op="sum")
        self.announced = True

    def share(self) -> Share:
        """Return what gradients are to be multiplied by before they are averaged.

        Raises:
            UsageError: Every rank has said 0; raised on all.
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
                self._share = self.even  # in floating point, the formula may miss it by a rounding
            else:
                relative = [weight / heaviest for weight in weights]  # whose sum is finite
                shares = tuple(weight * self._group.size / sum(relative) for weight in relative)
                self._share = Share(shares[self._group.rank], shares)
        return self._share

    def spend(self) -> None:
        """End the backward pass that the weights were for."""
        self.announced = False
