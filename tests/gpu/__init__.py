"""Everything that needs a GPU, in one command: `make gpu`, or `python -m tests.gpu`."""
