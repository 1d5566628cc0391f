"""What is known to go wrong before anything is submitted, and the text of a dry run."""
