"""What can be known to go wrong before anything is submitted, and what would be
submitted, as text."""
