"""Messages between two ranks, over TCP or through shared memory."""
