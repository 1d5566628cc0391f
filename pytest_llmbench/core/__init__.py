"""Records, options, errors and pure formulas for all other packages.

Imports no other package of this project.
"""
