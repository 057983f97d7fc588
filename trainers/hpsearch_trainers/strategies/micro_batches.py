"""In which order a stage of a pipeline takes the forward and the backward passes of a step's micro-batches.

Of three stages with four micro-batches, over time (F forward, B backward):

    gpipe   0   F0 F1 F2 F3 .  .  .  .  B0 B1 B2 B3      all forward, then all backward (Huang et al. 2019, figure 2c)
            1   .  F0 F1 F2 F3 .  .  B0 B1 B2 B3 .
            2   .  .  F0 F1 F2 F3 B0 B1 B2 B3 .  .

    1f1b    0   F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3      one forward, one backward, as soon as there is one to take
            1   .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .       (Narayanan et al. 2019, figure 4, with the step's flush)
            2   .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .

Both take as long; but a stage keeps what backward needs of all micro-batches with the first, and with the second of as
many as there are stages from it to the last one. Backward passes come in one order, so that both give the same bits.
"""

from __future__ import annotations

__all__ = ["BACKWARD", "FORWARD", "SCHEDULES", "order_of"]

FORWARD, BACKWARD = "forward", "backward"
SCHEDULES = ("gpipe", "1f1b")


def order_of(schedule: str, stages: int, stage: int, micro_batches: int) -> list[tuple[str, int]]:
    """Return the passes of a stage, in order, each with the number of its micro-batch.

    Args:
        schedule: One of `SCHEDULES`.
        stages: Of the pipeline.
        stage: Its number, from 0.
        micro_batches: Of the step.
    """
    ahead = micro_batches if schedule == "gpipe" else min(stages - 1 - stage, micro_batches)
    order = [(FORWARD, number) for number in range(ahead)]
    for number in range(micro_batches):
        if ahead + number < micro_batches:
            order.append((FORWARD, ahead + number))
        order.append((BACKWARD, number))
    return order
