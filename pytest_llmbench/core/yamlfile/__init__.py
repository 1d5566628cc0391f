"""YAML files that are checked node by node: documents with their lines, and what may stand where."""
