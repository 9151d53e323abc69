"""Planted bugs: each is put into a copy of the project, where the narrowest tests must notice it.

``python -m tests.mutants`` (``make mutants``) runs all of them and says which were caught.
"""
