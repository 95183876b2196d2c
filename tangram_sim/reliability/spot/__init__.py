"""Replaying histories of availability: policies that live with nodes coming and going, by account."""
