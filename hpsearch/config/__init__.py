"""Values that users write, wherever they write them: checks of single values, settings, import paths, strict JSON."""
