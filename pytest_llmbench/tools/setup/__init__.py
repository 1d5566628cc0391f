"""`llmbench setup` and `llmbench cluster`: a recipe's setup step, and a draft of the
cluster file."""
