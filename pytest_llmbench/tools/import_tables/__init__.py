"""`llmbench baselines import`: draft baseline files from the tables of documents."""
