"""The `tangram` command line: reads files, calls the library, and prints or writes the answer.

A verb is one subcommand, such as `plan` in `tangram plan`. No calculation is done in this package.
"""
