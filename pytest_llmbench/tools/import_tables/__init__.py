"""Draft baseline files from the tables of documents (`llmbench baselines import`)."""
