"""How a recipe is launched on this cluster: its document and the cluster file become one explicit command."""
