"""Run segments in agents: processes on any machines, over HTTP or a shared folder.

`Desk` is the driver's side of the protocol and `Outbox` the agent's; both are pure. Each side owns one document, and
only replaces it by a newer one. So messages that are lost, doubled, delayed or reordered change nothing.
"""
