"""Scripts written for other tools, run by changing an import."""
