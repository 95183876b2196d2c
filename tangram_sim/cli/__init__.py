"""The command line: verbs; files in, one file out. Knows no maths."""
