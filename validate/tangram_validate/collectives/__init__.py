"""Measured collectives: points and logs read, predicted and scored; rows of hwdb/collectives fitted."""
