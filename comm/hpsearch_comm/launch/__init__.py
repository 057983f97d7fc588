"""Starts ranks: `python -m hpsearch_comm.launch -np 4 [-H host1:2,host2:2] train.py ...`.

The launcher starts an agent on each host; on other hosts it uses ssh. An agent receives orders on its standard input,
starts the ranks of its host, and sends back their output and exit codes. When its input ends, for any reason, the agent
ends its ranks. So no process remains on any host, even if the launcher is killed.
"""
