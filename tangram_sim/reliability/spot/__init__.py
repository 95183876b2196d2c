"""Replay of availability histories: policies that react as nodes come and go, accounts of every second."""
