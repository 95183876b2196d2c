"""Fuzzing of the whole command line: sound commands and files, damaged at random, judged by one rule."""
