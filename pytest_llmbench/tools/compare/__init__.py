"""`llmbench compare`: is B slower than A?"""
