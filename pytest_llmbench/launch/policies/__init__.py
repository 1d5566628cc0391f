"""What follows from the runs of a configuration: pure functions over the history of its runs."""
