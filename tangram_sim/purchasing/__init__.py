"""What to buy: fleets with purchases, what they cost, and the search over a catalogue."""
