"""Partial plans composed into pipelines, exactly or within a budget."""
