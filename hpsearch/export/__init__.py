"""Export of studies for other tools, and of the best trial."""
