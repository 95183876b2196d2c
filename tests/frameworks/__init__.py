"""Exports held to the frameworks' own parsers and model builders, each in an environment of its own.

`make test-frameworks` writes every cell (model, framework, layout), runs the framework on it, prints a table.
"""
