"""How wide segments run: pure functions of free workers, of what could run, and of the times that were measured."""
