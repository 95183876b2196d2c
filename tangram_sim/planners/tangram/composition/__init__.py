"""Composition of partial plans into pipelines, exact or within a budget."""
