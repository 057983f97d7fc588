"""Links between two ranks: through shared memory, or over TCP."""
