"""Tables and pictures from results."""
