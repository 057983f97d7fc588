"""Compatibility layers: scripts for other tools run after changing one import."""
