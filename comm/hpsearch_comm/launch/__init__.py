"""Starts ranks: `python -m hpsearch_comm.launch -np 4 [-H host1:2,host2:2] train.py ...`.

The launcher starts an agent on each host, by ssh where that is another one. An agent is told what to do over its
standard input, starts the ranks of its host, and sends what they write and how they end. When its input ends, whatever
the reason, it ends its ranks: so nothing is left behind on any host, not even when the launcher is killed.
"""
