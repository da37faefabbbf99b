"""The library that Trainyard's programs share; see the house in README.md for who may import whom."""
