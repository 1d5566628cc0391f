"""One module for each dialect: how a framework prints its steps."""
