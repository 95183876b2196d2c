"""Published training runs on clusters of several GPU kinds, predicted and scored."""
