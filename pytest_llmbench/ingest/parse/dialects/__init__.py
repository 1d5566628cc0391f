"""The dialects of training logs: a module each, named as in `core.dialects`, which holds the markers."""
