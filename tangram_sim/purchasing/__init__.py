"""What to buy: fleets with purchases, their costs, and the search over a catalogue."""
