"""Training that continues after a failed collective, in the same processes.

state = hvd.elastic.TorchState(model, optimizer, batch=0)

@hvd.elastic.run
def train(state):
    for state.batch in range(state.batch, 1000):
        ...
        if state.batch % 10 == 0:
            state.commit()

train(state)
"""

from __future__ import annotations

from hpsearch_comm.horovod.elastic.run import run
from hpsearch_comm.horovod.elastic.sampler import ElasticSampler
from hpsearch_comm.horovod.elastic.state import ObjectState, State, TorchState
from hpsearch_comm.horovod.missing import IN_ELASTIC, missing_from

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]

__getattr__ = missing_from(__name__, IN_ELASTIC)
