"""Other systems' planners under the same simulator."""
