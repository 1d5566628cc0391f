"""What runs jobs: a module for each scheduler, which alone knows its commands and
words."""
