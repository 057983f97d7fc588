"""A sweep that runs elsewhere, on the screen of a terminal: what its journal says, as it is written."""
