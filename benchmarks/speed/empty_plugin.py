"""An empty pytest plugin: `idle` counts what the package costs beyond it."""
