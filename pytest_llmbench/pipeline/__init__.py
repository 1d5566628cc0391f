"""The order of the stages: the one room that knows all of them."""
