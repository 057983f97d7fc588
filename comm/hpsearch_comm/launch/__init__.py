"""Starts ranks: `python -m hpsearch_comm.launch -np 4 [-H host1:2,host2:2] train.py ...`.

The launcher starts an agent on each host, by ssh on other hosts. An agent receives its orders on its standard input,
starts the ranks of its host, and sends their output and how they end. When its input ends, for any reason, it ends its
ranks: so nothing remains on any host, not even when the launcher is killed.
"""
