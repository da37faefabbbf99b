"""The library that Trainyard's programs share; docs/architecture.md shows its packages and layers."""
