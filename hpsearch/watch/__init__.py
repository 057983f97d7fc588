"""A live view of a study in the terminal, from its journal."""
