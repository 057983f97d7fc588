"""A study in an object store: its journal as a chain of batches, and its checkpoints."""
