"""One module per dialect: how a framework prints its steps."""
